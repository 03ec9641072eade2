// Watching: the first picture, the controls, the games.

import { assertUnchanged, eventually, gameNames, ok, pickGame, recordSteps, restart, setSlider, shownStep, text, until, untilStepped, untilStillPicture, waitFrames } from './visit.mjs';

/** What the page says of each game: the number of its actions, a reference score, words of its rules, and whether
    its ruler has the two ends that it needs. */
const FACTS = new Map([
  ['fruit', [3, /7\.75/, /Fruits fall/, true]],
  ['catch', [3, /optimum1$/, /ball falls/, true]],
  ['cartpole', [2, /500/, /upright/, true]],
  ['recall', [4, /optimum1$/, /cue/, true]],
  ['breakout', [3, /0\.4/, /brick/, false]],
]);

export default [
  {
    name: 'the first picture shows the trained agent',
    webgpu: 'too',
    async run(visit) {
      const page = await visit.open();
      await visit.screenshot(page, 'first-frame');
      const { colours } = await visit.describePicture(page);
      ok(colours >= 4, `the picture has ${colours} colours`);
      ok((await text(page, '#agent-about')).includes('parameters'), 'no agent is described');
    },
  },
  {
    name: 'the page shows its renderer, its speed and its version',
    webgpu: 'too',
    async run(visit) {
      const page = await visit.open();
      await until(page, '#stat-steps', /[1-9]\d* steps a second/);
      ok(/^\d+\.\d+\.\d+/.test(await text(page, '#stat-version')), 'no version');
      ok(/MB of the page/.test(await text(page, '#stat-memory')), 'no memory');
      const screen = await text(page, '#stat-screen');
      ok(screen.startsWith(visit.gpu ? 'WebGPU, ' : '2D canvas'), `drawn by ${screen}`);
      const note = await text(page, '#renderer-note');
      ok(visit.gpu ? note === '' : note.startsWith('Without WebGPU: '), `it says: ${note}`);
      return screen;
    },
  },
  {
    name: 'pause stops time, a single step is one step, play continues',
    webgpu: 'too',
    async run(visit) {
      const page = await visit.open();
      await untilStepped(page);
      await page.click('#play');
      await until(page, '#play', /Play/);
      await waitFrames(page, 10); // until all texts describe the step at which it stopped
      await assertUnchanged(page, '#time', 'time continues in the pause');
      await restart(page, 3);
      for (let time = 1; time <= 5; time += 1) {
        await page.click('#single');
        await until(page, '#time', new RegExp(`step ${time} `));
      }
      await assertUnchanged(page, '#time', 'a step is more than one');
      await page.click('#play');
      await untilStepped(page);
    },
  },
  {
    name: 'speeds range from a quarter to unlimited',
    webgpu: 'too',
    async run(visit) {
      const page = await visit.open();
      for (const [place, name] of [[0, '0.25×'], [2, '1×'], [4, '4×'], [7, '32×'], [8, 'max']]) {
        await setSlider(page, '#speed', place);
        ok((await text(page, '#speed-out')) === name, `speed ${place} is not ${name}`);
        await untilStepped(page);
      }
      // The steps of a player in ten seconds of a clock that this check turns on, at sixty frames a second.
      const steps = await page.evaluate(async () => {
        const { Player, SPEEDS } = await import('./player.js');
        const real = performance.now;
        return SPEEDS.map((speed) => {
          let steps = 0;
          const player = new Player({ step: () => { steps += 1; }, draw: () => {}, onChange: () => {} });
          Object.assign(player, { speed, isPlaying: true });
          if (speed === Infinity) player.playUnlimited();
          else {
            performance.now = () => 0; // no frame runs out of time
            for (let frame = 0; frame <= 600; frame += 1) player.drawFrame(1000 + (frame * 1000) / 60);
            performance.now = real;
          }
          player.play(false);
          return steps;
        });
      });
      const exact = [25, 50, 100, 200, 400, 800, 1600, 3200];
      exact.forEach((wanted, i) => ok(Math.abs(steps[i] - wanted) <= 1, `${steps[i]} steps at speed ${i}, not ${wanted}`));
      ok(steps.at(-1) > 0, 'as fast as it goes is no step');
    },
  },
  {
    name: 'the same seed gives the same game, another seed another game',
    async run(visit) {
      const page = await visit.open();
      await restart(page, 7);
      const first = await recordSteps(page, 12);
      const picture = await untilStillPicture(visit, page);
      await restart(page, 7);
      const again = await recordSteps(page, 12);
      const same = await untilStillPicture(visit, page);
      await restart(page, 8);
      const other = await recordSteps(page, 12);
      ok(first.join() === again.join(), 'the same seed gives another game');
      ok(new Set(first).size > 6, 'nothing happens in the game');
      ok(picture.hash === same.hash, 'the same state looks different');
      ok(first.join() !== other.join(), 'another seed gives the same game');
      await page.fill('#seed', '-1');
      await page.click('#restart');
      await until(page, '#notices', /whole number/);
      await assertUnchanged(page, '#time', 'a wrong seed starts something');
    },
  },
  {
    name: 'every game to pick from has its rules and its agent',
    webgpu: 'too',
    async run(visit) {
      const page = await visit.open();
      const hashes = new Set();
      const games = await gameNames(page);
      ok([...games].sort().join() === [...FACTS.keys()].sort().join(), `FACTS has ${[...FACTS.keys()]}, the page ${games}`);
      ok((await page.locator('#game input[value=sort]').count()) === 1, 'there is no text to pick');
      // The page shows the first at the start, so another is picked before it.
      for (const game of [...games.slice(1), games[0]]) {
        const [actions, reference, rules, hasRuler] = FACTS.get(game);
        await pickGame(page, game);
        await until(page, '#references', reference);
        await until(page, '#rules', rules);
        await until(page, '#agent option:checked', /Pretrained/);
        ok((await page.locator('#probabilities li').count()) === actions, `${game} does not have ${actions} actions`);
        await untilStepped(page);
        const { hash, colours } = await visit.describePicture(page);
        ok(colours >= 4, `${game} has ${colours} colours`);
        hashes.add(hash);
        await visit.screenshot(page, `game-${game}`);
        for (const [word] of (await text(page, '#features')).matchAll(/slack|close by/g)) ok((await text(page, '#words')).toLowerCase().includes(word), `${word} is not explained`);
        const marks = await page.evaluate(() => document.querySelector('#ruler:not([hidden])')?.children.length ?? 0);
        ok(hasRuler ? marks >= 3 : marks === 0, `${game} has ${marks} marks on its ruler`);
      }
      ok(hashes.size === games.length, 'two games look the same');
    },
  },
  {
    name: 'a bar that is cut off is marked at that end',
    async run(visit) {
      const page = await visit.open({ hash: '#speed=8' });
      const sides = await page.evaluate(async () => {
        const sides = { low: 0, high: 0, wrong: 0 };
        for (let i = 0; i < 1500 && !(sides.low && sides.high); i += 1) {
          await new Promise(requestAnimationFrame);
          for (const row of document.querySelectorAll('#features li')) {
            const value = Number(row.querySelector('b').textContent.replace('−', '-'));
            const mark = getComputedStyle(row.querySelector('em'), '::after').content;
            const wanted = value > 1 ? '"▸"' : value < -1 ? '"◂"' : 'none';
            sides.wrong += mark !== wanted;
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
      await setSlider(page, '#speed', 8);
      await until(page, '#episodes', /^[2-9]\d|\d{3}/);
      const mean = Number((await text(page, '#mean')).split(' ')[0].replace('−', '-'));
      ok(mean > 6.5 && mean < 9.5, `the mean score of fruit is ${mean}`);
      return `mean score ${mean}`;
    },
  },
  {
    name: 'greedy takes the likeliest action, sampled does not always',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch' });
      // Count of actions that are not the likeliest, in some hundred looks.
      const others = async () => {
        await setSlider(page, '#speed', 7);
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
      await setSlider(page, '#wall', 2);
      await page.fill('#set-groups', '32');
      await until(page, '#wall-out', /^4$/);
      const hash = new URLSearchParams(new URL(page.url()).hash.slice(1));
      ok(hash.get('games') === '4' && hash.get('groups') === '32' && hash.get('rate') === '0.003', `the link is ${hash}`);
      const back = new URL(page.url()).hash;
      await page.close();
      const other = await visit.open({ hash: back });
      ok((await other.locator('#set-groups').inputValue()) === '32', 'the link does not lead back');
      // One without them has the defaults, whatever the page had.
      await other.evaluate(() => { location.hash = '#game=catch'; });
      await other.waitForFunction(() => ['seed', 'wall', 'speed'].map((id) => document.getElementById(id).value).join() === '1,0,2');
      await other.close();
      await visit.open({ hash: '#game=%3Cb%3E&seed=x&games=99999&speed=7&rate=abc' }).then(untilStepped);
    },
  },
  {
    name: 'each game keeps the settings of its link while other games or text are shown',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch&groups=16&rate=1E-4' });
      const pick = async (page, game, title) => {
        await pickGame(page, game);
        await until(page, '#settings-of', title);
      };
      await pick(page, 'fruit', /Fruit/);
      ok(!/groups/.test(page.url()), `the link of another game has them: ${page.url()}`);
      await pick(page, 'catch', /Catch/);
      ok((await page.inputValue('#set-groups')) === '16' && /groups=16/.test(page.url()), 'they are lost');
      ok((await page.inputValue('#set-rate')) === '1E-4' && /rate=1E-4/.test(page.url()), 'a rate with a capital E is lost');
      await page.evaluate(() => { location.hash = '#game=sort&groups=8'; });
      await page.locator('#text').waitFor();
      ok(!/groups/.test(page.url()), `text has settings of a game: ${page.url()}`);
      await page.evaluate(() => { location.hash = '#game=catch&groups=16'; });
      await page.waitForFunction(() => document.querySelector('#text').hidden && document.querySelector('#game input[value=catch]').checked);
      await pickGame(page, 'sort');
      await page.locator('#text').waitFor();
      await pickGame(page, 'catch');
      await page.locator('#stage').waitFor();
      ok(/Catch$/.test(await text(page, '#settings-of')) && (await page.inputValue('#set-groups')) === '16', 'the form is that of another game');
      const other = await visit.open({ hash: '#game=sort&groups=16' });
      await pickGame(other, 'fruit');
      await other.locator('#stage').waitFor();
      await untilStepped(other);
      ok((await other.inputValue('#set-groups')) !== '16', 'the settings of a link to text are those of a game');
    },
  },
  {
    name: 'a tab in the background waits, and says so',
    webgpu: 'too',
    async run(visit) {
      const page = await visit.open();
      const hide = (hidden) => page.evaluate((hidden) => {
        Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
      }, hidden);
      await untilStepped(page);
      await hide(true);
      const away = await page.evaluate(() => performance.now());
      const before = await shownStep(page);
      // An absence of less than a second is not worth a word.
      await eventually('an absence', () => page.evaluate(() => performance.now()), (now) => now > away + 1100);
      const after = await shownStep(page);
      ok(after.time === before.time && after.game === before.game, 'the game continues in the background');
      // The first step after the absence, read in the page so that none is missed.
      const firstStep = page.evaluate(() => new Promise((done) => {
        const time = document.querySelector('#time');
        new MutationObserver(() => done(time.textContent)).observe(time, { childList: true, characterData: true, subtree: true });
      }));
      await hide(false);
      await until(page, '#notices', /paused while this tab was in the background/);
      const time = Number(/step (\d+)/.exec(await firstStep)[1]);
      ok((time - before.time + 101) % 101 < 12, `it caught up from ${before.time} to ${time}`);
      // No message if nothing ran in the background.
      await page.click('#play');
      await page.evaluate(() => document.querySelector('#notices').replaceChildren());
      await hide(true);
      const again = await page.evaluate(() => performance.now());
      await eventually('an absence', () => page.evaluate(() => performance.now()), (now) => now > again + 1100);
      await hide(false);
      await waitFrames(page, 10);
      ok((await text(page, '#notices')) === '', `of a game that was paused it says ${await text(page, '#notices')}`);
    },
  },
];
