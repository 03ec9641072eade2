// Watching: the first picture, the controls, the games.

import { course, goesOn, ok, pause, restart, slide, state, text, until } from './visit.mjs';

const FIRST = 1000; // milliseconds to the first picture
const TRIES = 7;
const GOOD = 5; // tries that must be in time: the machine may be busy with other things in two
const CALL = 20; // microseconds for a call into the module, by far enough

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
    // It took a hundred times as long where each call began all libraries anew.
    name: 'a call into the module costs next to nothing',
    async run(visit) {
      const page = await visit.open();
      const times = await page.evaluate(async () => {
        const { version } = await import('./watch.js');
        return Array.from({ length: 5 }, () => {
          const start = performance.now();
          for (let call = 0; call < 1000; call += 1) version();
          return performance.now() - start; // milliseconds for a thousand, so microseconds for one
        });
      });
      const best = Math.min(...times);
      ok(best < CALL, `a call takes ${best.toFixed(1)} µs`);
      return `${best.toFixed(1)} µs`;
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
      ok((await page.locator('#game input').count()) === games.length + 1, 'other games to pick from, or no text');
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
        for (const [word] of (await text(page, '#features')).matchAll(/slack|close by/g)) ok((await text(page, '#words')).toLowerCase().includes(word), `${word} is not explained`);
        const marks = await page.evaluate(() => document.querySelector('#ruler:not([hidden])')?.children.length ?? 0);
        ok(game === 'breakout' ? marks === 0 : marks >= 3, `${game} has ${marks} marks on its ruler`);
      }
      ok(hashes.size === games.length, 'two games look alike');
    },
  },
  {
    name: 'a bar that is longer than its room says so, at the end that is cut',
    async run(visit) {
      const page = await visit.open({ hash: '#speed=8' });
      const sides = await page.evaluate(async () => {
        const sides = { low: 0, high: 0, wrong: 0 };
        for (let i = 0; i < 1500 && !(sides.low && sides.high); i += 1) {
          await new Promise(requestAnimationFrame);
          for (const row of document.querySelectorAll('#features li')) {
            const value = Number(row.querySelector('b').textContent.replace('−', '-'));
            const told = getComputedStyle(row.querySelector('em'), '::after').content;
            const wanted = value > 1 ? '"▸"' : value < -1 ? '"◂"' : 'none';
            sides.wrong += told !== wanted;
            sides.high += value > 1;
            sides.low += value < -1;
          }
        }
        return sides;
      });
      ok(sides.wrong === 0 && sides.low > 0 && sides.high > 0, JSON.stringify(sides));
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
