// Watching and playing: the first picture, the controls, the person at the side.

import { course, goesOn, ok, pause, restart, slide, state, text, until } from './visit.mjs';
import { load, save, settings } from './keeping.mjs';

const FIRST = 1000; // milliseconds to the first picture
const TRIES = 7;
const GOOD = 5; // tries that must be in time: the machine may be busy with other things in two

export default [
  {
    name: 'the trained agent is there within a second',
    async run(visit) {
      const times = [];
      const good = () => times.filter((time) => time < FIRST).length;
      while (good() < GOOD && times.length - good() <= TRIES - GOOD) {
        const page = await visit.open();
        times.push(await page.evaluate(() => performance.getEntriesByName('first-frame')[0].startTime));
        if (times.length === 1) await visit.shot(page, 'first-frame');
        const { colours } = await visit.picture(page);
        ok(colours >= 4, `the picture has ${colours} colours`);
        ok((await text(page, '#agent-about')).includes('parameters'), 'no agent is told of');
        await page.context().close();
      }
      const all = times.map((time) => `${Math.round(time)} ms`).join(', ');
      ok(good() >= GOOD, `the first picture came after ${all}`);
      return all;
    },
  },
  {
    name: 'the page tells how it draws, how fast, and its version',
    async run(visit) {
      const page = await visit.open();
      await until(page, '#tell-steps', /[1-9]\d* steps a second/);
      ok(/^\d+\.\d+\.\d+/.test(await text(page, '#tell-version')), 'no version');
      ok(/MB of the page/.test(await text(page, '#tell-memory')), 'no memory');
      const screen = await text(page, '#tell-screen');
      ok(screen.startsWith(visit.gpu ? 'WebGPU, ' : '2D canvas'), `drawn by ${screen}`);
      const way = await text(page, '#way');
      ok(visit.gpu ? way === '' : way.startsWith('Without WebGPU: '), `it says: ${way}`);
      return screen;
    },
  },
  {
    name: 'pause stops time, a single step is one, play goes on',
    async run(visit) {
      const page = await visit.open();
      await goesOn(page);
      await page.click('#play');
      await pause(150);
      const before = await text(page, '#time');
      await pause(500);
      ok((await text(page, '#time')) === before, 'time goes on in the pause');
      await restart(page, 3);
      for (let time = 1; time <= 5; time += 1) {
        await page.click('#single');
        await until(page, '#time', new RegExp(`step ${time} `));
      }
      await pause(300);
      ok((await state(page)).time === 5, 'a step is more than one');
      await page.click('#play');
      await goesOn(page);
    },
  },
  {
    name: 'speeds from a quarter to as fast as it goes',
    async run(visit) {
      const page = await visit.open();
      const rates = [];
      for (const [place, name] of [[0, '0.25×'], [2, '1×'], [4, '4×'], [7, '32×'], [8, 'max']]) {
        await slide(page, '#speed', place);
        ok((await text(page, '#speed-out')) === name, `speed ${place} is not ${name}`);
        // The number is of the last second: the second one is of this speed alone.
        await pause(3100);
        const [, number, unit] = /([\d.]+)([kM]?) steps a second/.exec(await text(page, '#tell-steps'));
        rates.push(Number(number) * { '': 1, k: 1e3, M: 1e6 }[unit]);
      }
      ok(rates[0] >= 1 && rates[0] <= 4, `0.25× is ${rates[0]} steps a second`);
      ok(rates[1] > 2 * rates[0] && rates[1] <= 12, `1× is ${rates[1]} steps a second`);
      ok(rates[2] > 2 * rates[1] && rates[2] <= 45, `4× is ${rates[2]} steps a second`);
      ok(rates[3] > 2 * rates[2] && rates[3] <= 350, `32× is ${rates[3]} steps a second`);
      ok(rates[4] > 2 * rates[3], `as fast as it goes is ${rates[4]} steps a second`);
      return `${rates.join(', ')} steps a second`;
    },
  },
  {
    name: 'a seed is a game: the same again, another with another',
    async run(visit) {
      const page = await visit.open();
      await restart(page, 7);
      const first = await course(page, 12);
      await pause(300); // the last motion comes to its end
      const picture = await visit.picture(page);
      await restart(page, 7);
      const again = await course(page, 12);
      await pause(300);
      const same = await visit.picture(page);
      await restart(page, 8);
      const other = await course(page, 12);
      ok(first.join() === again.join(), 'the same seed gives another game');
      ok(new Set(first).size > 6, 'nothing happens in the game');
      ok(picture.hash === same.hash, 'the same state looks otherwise');
      ok(first.join() !== other.join(), 'another seed gives the same game');
      await page.fill('#seed', '-1');
      await page.click('#restart');
      await until(page, '#notices', /whole number/);
      await goesOn(page).then(() => ok(false, 'a wrong seed starts something'), () => {});
    },
  },
  {
    name: 'five games to pick from, each with its rules and its agent',
    async run(visit) {
      const page = await visit.open();
      const hashes = new Set();
      const games = [['cartpole', 2, /500/, /upright/], ['catch', 3, /optimum1$/, /ball falls/], ['breakout', 3, /0\.4/, /brick/], ['recall', 4, /optimum1$/, /cue/], ['fruit', 3, /7\.75/, /Fruits fall/]];
      ok((await page.locator('#game input').count()) === games.length, 'other games to pick from');
      for (const [game, actions, best, rules] of games) {
        await page.locator(`#game input[value=${game}]`).check({ force: true });
        await until(page, '#references', best);
        await until(page, '#rules', rules);
        await until(page, '#agent option:checked', /Comes with the page/);
        ok((await page.locator('#probabilities li').count()) === actions, `${game} has not ${actions} actions`);
        await goesOn(page);
        const { hash, colours } = await visit.picture(page);
        ok(colours >= 4, `${game} has ${colours} colours`);
        hashes.add(hash);
        await visit.shot(page, `game-${game}`);
        // A line needs two ends.
        const marks = await page.evaluate(() => document.querySelector('#ruler:not([hidden])')?.children.length ?? 0);
        ok(game === 'breakout' ? marks === 0 : marks >= 3, `${game} has ${marks} marks on its ruler`);
      }
      ok(hashes.size === games.length, 'two games look alike');
    },
  },
  {
    name: 'the trained agent is good, and better than chance',
    async run(visit) {
      const page = await visit.open();
      await slide(page, '#speed', 8);
      await until(page, '#episodes', /^[2-9]\d|\d{3}/, 40);
      const mean = Number((await text(page, '#mean')).split(' ')[0].replace('−', '-'));
      ok(mean > 6.5 && mean < 9.5, `the mean score of fruit is ${mean}`);
      return `mean score ${mean}`;
    },
  },
  {
    name: 'greedy takes the likeliest action, sampled does not always',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch' });
      // How often the action is not the likeliest, of some hundred looks.
      const others = async () => {
        await slide(page, '#speed', 7);
        return page.evaluate(async () => {
          let others = 0;
          for (let i = 0; i < 400; i += 1) {
            await new Promise(requestAnimationFrame);
            const rows = [...document.querySelectorAll('#probabilities li')];
            const values = rows.map((row) => Number.parseFloat(row.querySelector('b').textContent));
            const chosen = values[rows.findIndex((row) => row.classList.contains('chosen'))];
            others += chosen < Math.max(...values);
          }
          return others;
        });
      };
      ok((await others()) === 0, 'a greedy action is not the likeliest');
      await page.locator('#actions input[value=sampled]').check({ force: true });
      const drawn = await others();
      ok(drawn > 0, 'drawn actions are always the likeliest');
      ok(page.url().includes('actions=sampled'), 'the link does not say it');
      return `${drawn} of 400`;
    },
  },
  {
    name: 'a wall of up to 1,024 games',
    async run(visit) {
      const page = await visit.open();
      const one = await visit.picture(page);
      for (const [place, games] of [[4, 16], [10, 1024]]) {
        await slide(page, '#wall', place);
        ok((await text(page, '#wall-out')) === `${games}`, `not ${games} games`);
        await until(page, '#tell-steps', games === 16 ? /1\d\d steps a second/ : /\dk steps a second/);
        await goesOn(page);
        await visit.shot(page, `wall-${games}`);
        ok((await visit.picture(page)).hash !== one.hash, 'the picture is the same');
      }
      const rate = await text(page, '#tell-steps');
      await slide(page, '#wall', 0);
      await goesOn(page);
      return rate;
    },
  },
  {
    name: 'Shift takes over, keys steer, both scores are there',
    async run(visit) {
      const page = await visit.open();
      await page.keyboard.down('Shift');
      await until(page, '#takeover', /Leave/);
      ok(await page.locator('#duel').isVisible(), 'no scores side by side');
      await until(page, '#time', /step [1-9] /);
      // To the wall at the right: then half of the picture is another.
      await page.keyboard.down('ArrowRight');
      await pause(3000);
      await visit.shot(page, 'takeover');
      await page.keyboard.up('ArrowRight');
      await page.keyboard.down('KeyA');
      await slide(page, '#speed', 4);
      await until(page, '#duel-last', /(You win|The agent wins|A draw), .* to .*Games won/, 40);
      await page.keyboard.up('KeyA');
      const last = await text(page, '#duel-last');
      ok(/The agent wins/.test(last), `who only goes left wins: ${last}`);
      await page.keyboard.up('Shift');
      await until(page, '#takeover', /Take over/);
      ok(await page.locator('#duel').isHidden(), 'the scores stay');
      await goesOn(page);
      return last;
    },
  },
  {
    name: 'a person who does what the agent does has its score',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch' });
      await restart(page, 2);
      await page.click('#takeover');
      await until(page, '#takeover', /Leave/);
      await until(page, '#time', /step [1-9]/);
      await restart(page, 2); // both from the start, and standing still
      let steps = 0;
      for (; steps < 40 && !(await text(page, '#duel-last')); steps += 1) {
        const chosen = await text(page, '#probabilities .chosen span');
        if (chosen !== 'stay') await page.keyboard.press(chosen === 'left' ? 'ArrowLeft' : 'KeyD');
        await page.click('#single');
        await pause(60);
      }
      const last = await text(page, '#duel-last');
      ok(/^A draw, 1 to 1/.test(last), `after ${steps} steps: ${last}`);
      // Frozen until the next level, which is the same for both.
      ok(await page.locator('#next-level').isVisible(), 'the next level is not offered');
      const time = await text(page, '#time');
      await page.click('#play');
      await pause(600);
      ok((await text(page, '#time')) === time, 'the duel goes on behind its end');
      await page.click('#next-level');
      await until(page, '#time', /step [1-9]/);
      ok(await page.locator('#verdict').isHidden(), 'the verdict stays');
      await page.keyboard.press('Escape');
      await until(page, '#takeover', /Take over/);
    },
  },
  {
    name: 'taking over goes on with the very game, each name is over its board, and leaving gives the game back',
    async run(visit) {
      for (const game of ['fruit', 'cartpole']) {
        const page = await visit.open({ hash: `#game=${game}` });
        await until(page, '#time', /step (9|1\d) /);
        await page.click('#play');
        await pause(200);
        const before = await text(page, '#time');
        await page.click('#takeover');
        await until(page, '#count', /[123]/);
        ok((await text(page, '#time')) === before, `another game begins: ${await text(page, '#time')} instead of ${before}`);
        const [agent, person] = await Promise.all(['#duel-agent', '#duel-person'].map((one) => page.locator(one).boundingBox()));
        const stage = await page.locator('#stage').boundingBox();
        const apart = game === 'fruit' ? person.x - agent.x > stage.width / 3 : person.y - agent.y > stage.height / 3;
        ok(apart, `the names of ${game} are at ${agent.x}, ${agent.y} and ${person.x}, ${person.y}`);
        await until(page, '#time', /step (1[3-9]|[2-9]\d) /);
        await visit.shot(page, `duel-${game}`);
        await page.keyboard.press('Escape');
        await until(page, '#takeover', /Take over/);
        const { time } = await state(page);
        ok(time < Number(/step (\d+)/.exec(before)[1]) + 4, `after it the game is at step ${time}, not at ${before}`);
        await page.context().close();
      }
    },
  },
  {
    name: 'the mean is of one policy, and on a wall of all its games, with its error; a click picks a board',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch&games=16&speed=max' });
      await until(page, '#episodes', /\d{3}/, 30);
      await until(page, '#of-games', /all 16 games/);
      ok(/^[\d.]+ ± \d/.test(await text(page, '#mean')), `the mean is ${await text(page, '#mean')}`);
      const framed = () => page.locator('#picked').boundingBox();
      const before = await framed();
      const stage = await page.locator('#stage canvas').boundingBox();
      await page.mouse.click(stage.x + stage.width * 0.62, stage.y + stage.height * 0.7);
      await pause(300);
      const after = await framed();
      ok(after.x !== before.x && after.y !== before.y, 'the frame stays where it was');
      ok(after.x < stage.x + stage.width * 0.62 && after.x + after.width > stage.x + stage.width * 0.6, 'another board is framed');
      await page.locator('#actions input[value=sampled]').check({ force: true });
      await until(page, '#episodes', /^\d{1,4}$/);
      await visit.shot(page, 'wall-picked');
    },
  },
  {
    name: 'reference scores belong to the settings of the policy',
    async run(visit) {
      const page = await visit.open();
      ok(/7\.75/.test(await text(page, '#references')), 'none for the usual game');
      const { bytes } = await save(page);
      const wide = Buffer.from(settings(bytes).replace('max_steps = 100', 'max_steps = 70'));
      await load(page, [{ name: 'config.toml', buffer: wide }, { name: 'weights.safetensors', buffer: bytes }]);
      await until(page, '#time', /of 70/);
      ok((await text(page, '#references')) === '', `beside another game: ${await text(page, '#references')}`);
      ok(await page.locator('#ruler').isHidden(), 'the ruler stays');
    },
  },
  {
    name: 'at every width nothing is too wide and the game picker is in the first view, light and dark',
    async run(visit) {
      for (const [width, height] of [[320, 640], [390, 844], [768, 1024], [1280, 800], [1920, 1080]]) {
        for (const colorScheme of ['light', 'dark']) {
          const page = await visit.open({ options: { viewport: { width, height }, colorScheme } });
          const wide = await page.evaluate(() => document.documentElement.scrollWidth);
          ok(wide <= width, `at ${width} the page is ${wide} px wide`);
          const picker = await page.locator('#game').boundingBox();
          ok(picker.y + picker.height < height, `at ${width} the game picker ends at ${picker.y + picker.height}`);
          const outside = await page.evaluate(() => [...document.querySelectorAll('button, input, select')].filter((one) => {
            const [box, around] = [one.getBoundingClientRect(), one.parentElement.getBoundingClientRect()];
            return one.checkVisibility() && box.right > around.right + 1;
          }).map((one) => one.id));
          ok(outside.length === 0, `at ${width} beyond their rows: ${outside}`);
          await visit.shot(page, `at-${width}-${colorScheme}`, true);
          await page.context().close();
        }
      }
    },
  },
  {
    name: 'a phone: nothing is too wide, and fingers steer',
    async run(visit) {
      const page = await visit.open({ options: { viewport: { width: 360, height: 740 }, deviceScaleFactor: 2, hasTouch: true, isMobile: true } });
      await visit.shot(page, 'phone', true);
      const wide = () => page.evaluate(() => document.documentElement.scrollWidth);
      ok((await wide()) <= 360, `the page is ${await wide()} px wide`);
      await page.tap('#takeover');
      await until(page, '#takeover', /Leave/);
      ok(await page.locator('#pad-left').isVisible(), 'no buttons for fingers');
      ok((await wide()) <= 360, 'taking over makes the page too wide');
      const small = await page.evaluate(() => [...document.querySelectorAll('#view button')].filter((one) => one.checkVisibility() && one.clientHeight < 32).length);
      ok(small === 0, 'a button is too small for a finger');
      await until(page, '#time', /step [1-9]/);
      const before = await visit.picture(page);
      for (let i = 0; i < 8; i += 1) await page.tap('#pad-right').then(() => pause(120));
      ok((await visit.picture(page)).hash !== before.hash, 'nothing moves');
      await visit.shot(page, 'phone-takeover');
    },
  },
  {
    name: 'the link carries game and settings',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch&seed=9&games=16&speed=8&rate=0.003&seeds=2' });
      ok(await page.locator('#game input[value=catch]').isChecked(), 'not that game');
      const values = await page.evaluate(() => ['seed', 'wall', 'speed', 'set-rate', 'set-seeds'].map((id) => document.getElementById(id).value).join());
      ok(values === '9,4,5,0.003,2', `the settings are ${values}`);
      await slide(page, '#wall', 2);
      await page.fill('#set-groups', '32');
      await until(page, '#wall-out', /^4$/);
      const hash = new URLSearchParams(new URL(page.url()).hash.slice(1));
      ok(hash.get('games') === '4' && hash.get('groups') === '32' && hash.get('rate') === '0.003', `the link is ${hash}`);
      const back = new URL(page.url()).hash;
      await page.close();
      const other = await visit.open({ hash: back });
      ok((await other.locator('#set-groups').inputValue()) === '32', 'the link does not lead back');
      await other.close();
      await visit.open({ hash: '#game=%3Cb%3E&seed=x&games=99999&speed=7&rate=abc' }).then(goesOn);
    },
  },
  {
    name: 'every control is reached by the keyboard, with a visible focus and a name',
    async run(visit) {
      const page = await visit.open();
      const wanted = await page.evaluate(() => [...document.querySelectorAll('button, select, input:not([type=radio], [type=file]), summary, #charts canvas')]
        .filter((one) => one.checkVisibility() && !one.disabled).map((one) => one.id || one.textContent));
      const reached = new Set();
      for (let i = 0; i < wanted.length + 25; i += 1) {
        await page.keyboard.press('Tab');
        const { id, plain, nameless } = await page.evaluate(() => {
          const one = document.activeElement;
          const lit = one.matches('[type=radio]') ? one.nextElementSibling : one;
          const name = one.ariaLabel || one.textContent.trim() || [...(one.labels ?? [])].map((label) => label.textContent).join('');
          return { id: one.id || one.textContent, plain: getComputedStyle(lit).outlineStyle === 'none' && one !== document.body, nameless: !name && one !== document.body };
        });
        ok(!plain, `the focus on ${id} is not to be seen`);
        ok(!nameless, `${id} has no name`);
        reached.add(id);
      }
      const missed = wanted.filter((id) => !reached.has(id));
      ok(missed.length === 0, `not reached: ${missed.join(', ')}`);
      return `${wanted.length} controls`;
    },
  },
  {
    name: 'light and dark are both readable, and less motion is respected',
    async run(visit) {
      const ratios = [];
      for (const colorScheme of ['light', 'dark']) {
        const page = await visit.open({ options: { colorScheme, reducedMotion: 'reduce' } });
        const ratio = await page.evaluate(leastContrast);
        ok(ratio >= 4.5, `a contrast in the ${colorScheme} is ${ratio.toFixed(1)}`);
        ratios.push(ratio.toFixed(1));
        ok((await text(page, '#play')) === 'Play', 'it moves by itself');
        const before = await text(page, '#time');
        await pause(400);
        ok((await text(page, '#time')) === before, 'it moves by itself');
        await page.click('#play');
        await goesOn(page);
        await visit.shot(page, colorScheme, true);
      }
      return `least contrasts ${ratios.join(' and ')}`;
    },
  },
  {
    name: 'a resize in mid-run fits the picture',
    async run(visit) {
      const page = await visit.open();
      const sharp = () => page.evaluate(() => {
        const canvas = document.querySelector('#stage canvas');
        return canvas.width / canvas.clientWidth;
      });
      for (const [width, height] of [[900, 700], [500, 800], [1500, 1000]]) {
        await page.setViewportSize({ width, height });
        await pause(300);
        const { colours, width: wide } = await visit.picture(page);
        ok(colours >= 4, `nothing is drawn at ${width} x ${height}`);
        ok(wide <= width, 'the picture is wider than the window');
        const ratio = await sharp();
        ok(visit.gpu ? Math.abs(ratio - 1) < 0.01 : ratio > 0.4, `a pixel of the picture is ${ratio} of the screen`);
        await goesOn(page);
      }
    },
  },
  {
    name: 'a tab in the background waits, and says so',
    async run(visit) {
      const page = await visit.open();
      const hide = (hidden) => page.evaluate((hidden) => {
        Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
      }, hidden);
      await goesOn(page);
      await hide(true);
      await pause(200);
      const before = await state(page);
      await pause(1500);
      const after = await state(page);
      ok(after.time === before.time && after.game === before.game, 'the game goes on in the background');
      await hide(false);
      await until(page, '#notices', /stood still while this tab was in the background/);
      await goesOn(page);
      const { time } = await state(page);
      ok((time - before.time + 101) % 101 < 12, `it caught up from ${before.time} to ${time}`);
    },
  },
];

/// Runs in the page: the least contrast of a text to what is behind it (WCAG 2.2, 1.4.3).
function leastContrast() {
  const parse = (colour) => (/[\d.]+/.test(colour) ? colour.match(/[\d.]+/g).map(Number) : [0, 0, 0, 0]);
  const light = (colour) => {
    const [r, g, b] = parse(colour).map((x) => (x / 255 <= 0.04045 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((parse(colour)[3] ?? 1) > 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  let least = Infinity;
  for (const element of document.querySelectorAll('main *, header *, footer *')) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest(':disabled')) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
    least = Math.min(least, (a + 0.05) / (b + 0.05));
  }
  return least;
}
