// Training in the tab: to a score, with pause, reset and several seeds.

import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { saveAgent } from './keeping.mjs';
import { assertUnchanged, download, eventually, ok, pickGame, setSlider, text, trainAndPause, trainToEnd, until, untilMessage, untilStepped, untilStored } from './visit.mjs';

/** The greedy score at which catch counts as learnt; the optimum is 1. */
const LEARNT_SCORE = 0.9;

/** The link of a training of catch, which is over soon unless it has more iterations, on WebGPU where there is any, be
    it software. */
export const shortTraining = ({ gpu }, iterations = 12) => `#game=catch&groups=16&size=8&width=16&layers=1&iterations=${iterations}${gpu ? '&device=WebGPU' : ''}`;

const toNumber = (text) => Number(text.replace('−', '-'));

/** Trains by the settings of a link until the greedy score is reached; an error if the training ends before. */
export async function trainToScore(visit, hash) {
  const page = await visit.open({ hash });
  await page.click('#start');
  const greedy = (state) => toNumber(/greedy ([−\d.]+)/.exec(state)?.[1] ?? 'NaN');
  const state = await eventually('the score', () => text(page, '#state'), (state) => greedy(state) >= LEARNT_SCORE || /^(Finished|Stopped|Not started)/.test(state));
  ok(greedy(state) >= LEARNT_SCORE, `catch is not learnt: ${state}`);
  await visit.screenshot(page, 'training', true);
  return { page, state };
}

export default [
  {
    name: 'catch is learnt to 0.9',
    run: async (visit) => (await trainToScore(visit, '#game=catch')).state,
  },
  {
    name: 'catch is learnt on a software GPU, if that is requested, by small groups',
    webgpu: 'only',
    run: async (visit) => (await trainToScore(visit, '#game=catch&device=WebGPU&groups=32&size=8&width=32&rate=0.02')).state,
  },
  {
    name: 'the agent on the stage is the newest, all curves are drawn, and the device is shown',
    webgpu: 'too',
    async run(visit) {
      const page = await visit.open({ hash: shortTraining(visit) });
      const before = await text(page, '#agent-about');
      await page.click('#train-here');
      await until(page, '#state', /iteration ([2-9]|\d\d)/);
      ok((await page.locator('#agent').inputValue()).startsWith('here'), 'another agent is on the stage');
      ok((await text(page, '#agent-about')) !== before, 'the agent does not have the requested size');
      await untilStepped(page);
      await until(page, '#state', /^Finished catch: iteration 12 of 12/);
      await page.waitForFunction(() => [...document.querySelectorAll('#charts figure canvas')].every(({ ariaLabel }) => /over the iterations [01] to 12/.test(ariaLabel)));
      // The scale has the whole climb, from a random player at -0.6 to the optimum.
      const label = await page.locator('figure.score canvas').getAttribute('aria-label');
      const [low, high] = /on a scale from (\S+) to (\S+)\. /.exec(label)?.slice(1).map(toNumber) ?? [];
      ok(low <= -0.6 && high >= 1, `the curve is cut: ${label}`);
      for (const figure of await page.locator('#charts figure, figure.score').all()) {
        const [title, value] = [await figure.locator('b').textContent(), await figure.locator('output').textContent()];
        ok(/\d/.test(value), `${title} has no value`);
      }
      ok(/Near zero is normal/.test(await text(page, 'figure.loss')) && (await page.locator('figure.loss .hint').isVisible()), 'a loss near zero is not explained');
      for (const figure of ['score', 'loss', 'steps_per_second']) {
        ok((await visit.describePicture(page, `figure.${figure} canvas`)).colours > 5, `the chart of ${figure} is empty`);
      }
      await page.locator('figure.score canvas').focus();
      await page.keyboard.press('PageUp');
      await until(page, 'figure.loss output', /^2: /);
      const device = await text(page, '#stat-training');
      ok(device.includes(visit.gpu ? 'WebGPU' : 'CPU') && /steps a second/.test(device), `the device is ${device}`);
      ok(/MB of the worker/.test(await text(page, '#stat-memory')), 'the memory is not shown');
      return device;
    },
  },
  {
    name: 'training pauses, continues and is reset',
    webgpu: 'too',
    async run(visit) {
      // So many that it is not over before it has been seen to continue.
      const page = await visit.open({ hash: shortTraining(visit, visit.gpu ? 500 : 10_000) });
      await trainAndPause(page);
      const before = await text(page, '#state');
      await assertUnchanged(page, '#state', 'it trains in the pause', 90);
      await untilStepped(page);
      await page.click('#pause');
      await page.waitForFunction((before) => /^Training/.test(document.querySelector('#state').textContent) && document.querySelector('#state').textContent.replace('Training', 'Paused') !== before, before);
      const [, done] = /iteration (\d+)/.exec(await text(page, '#state'));
      ok(Number(done) > 1, 'it starts from the beginning after a pause');
      await page.click('#reset');
      await until(page, '#state', /^Not started/);
      await page.waitForFunction(() => /nothing yet/.test(document.querySelector('figure.entropy canvas').ariaLabel)); // the curves are gone
      await assertUnchanged(page, '#state', 'it trains on after a reset', 60);
      await page.fill('#set-iterations', '3');
      await trainToEnd(page, /^Finished catch: iteration 3 of 3/);
    },
  },
  {
    name: 'a reload resumes a training, which ends the same to the byte, and leaving warns',
    webgpu: 'too',
    slow: true,
    async run(visit) {
      const hash = `${shortTraining(visit, visit.gpu ? 20 : 1000)}&seeds=2`;
      const files = async (page) => {
        await until(page, '#state', /^Finished catch: iteration \d+/);
        const all = [];
        for (const seed of [1, 2]) {
          await page.selectOption('#agent', `here ${seed}`);
          all.push((await saveAgent(page)).bytes);
        }
        return all;
      };
      const whole = await visit.open({ hash });
      await whole.click('#start');
      const expected = await files(whole);
      await whole.context().close();

      const page = await visit.open({ hash, options: {} });
      let warned = 0;
      page.on('dialog', (dialog) => { warned += dialog.type() === 'beforeunload'; dialog.accept(); });
      await page.click('#start');
      await until(page, '#state', /iteration ([5-9]|\d\d)/);
      await page.click('#pause');
      await until(page, '#state', /^Paused catch: iteration/);
      await page.click('#pause');
      await untilStored(page, 'run', (run) => run?.paused === false);
      await page.reload();
      ok(warned === 1, 'leaving does not warn');
      await untilMessage(page, /Resuming the training of Catch/);
      await until(page, '#state', /^(Training|Finished) catch: iteration/);
      const found = await files(page);
      found.forEach((file, i) => ok(Buffer.compare(file, expected[i]) === 0, `seed ${i + 1} is another policy`));
      await untilStored(page, 'run', (run) => run === undefined);
      await page.reload();
      await until(page, '#state', /^Not started/);
      await assertUnchanged(page, '#state', 'a finished training continues');
    },
  },
  {
    name: 'each game has its own form, and the buttons say what they train',
    async run(visit) {
      const page = await visit.open({ hash: shortTraining(visit, 3000) });
      await page.click('#start');
      await until(page, '#state', /^Training catch: .*left/);
      await page.click('#pause');
      await until(page, '#state', /^Paused catch/);
      await pickGame(page, 'fruit');
      await until(page, '#settings-of', /^Settings for Fruit catcher$/);
      ok((await page.inputValue('#set-groups')) !== '16', 'the settings are those of catch');
      ok(/Training: Catch/.test(await text(page, '#lab-title')), 'the curves do not say whose they are');
      ok(/this instead/.test(await text(page, '#start')), `the button says ${await text(page, '#start')}`);
      ok((await text(page, '#train-here')) === 'Train an agent', `the button on top says ${await text(page, '#train-here')}`);
      await page.fill('#set-groups', '8');
      await page.fill('#set-iterations', '2');
      await pickGame(page, 'catch');
      await until(page, '#settings-of', /Catch/);
      await pickGame(page, 'fruit');
      await until(page, '#settings-of', /Fruit/);
      ok((await page.inputValue('#set-groups')) === '8', 'the game has lost its settings');
      await trainToEnd(page, /^Finished fruit: iteration 2 of 2/);
      // The device is the same for all games, until a link says otherwise.
      await page.selectOption('#set-device', 'CPU');
      await pickGame(page, 'catch');
      await until(page, '#settings-of', /Catch/);
      ok((await page.inputValue('#set-device')) === 'CPU', 'another game has another device');
      await page.evaluate(() => { location.hash = '#game=catch&groups=32'; });
      await page.waitForFunction(() => document.querySelector('#set-groups').value === '32');
      ok((await page.inputValue('#set-device')) === 'auto', 'a link without a device leaves it as it was');
    },
  },
  {
    name: 'a visitor who picks another game before the first policy arrives stays on it',
    async run(visit) {
      const context = await visit.context();
      let arrive;
      const late = new Promise((done) => { arrive = done; });
      await context.route('**/train*_bg.wasm', (route) => late.then(() => route.continue()));
      const page = await visit.open({ hash: shortTraining(visit), context });
      await page.click('#start');
      await pickGame(page, 'fruit');
      await until(page, '#settings-of', /Fruit/);
      arrive();
      await until(page, '#state', /^Finished catch/);
      ok(await page.locator('#game input[value=fruit]').isChecked(), 'the page goes back by itself');
      ok(/^Pretrained/.test(await text(page, '#agent option:checked')), 'the agent of another game is on the stage');
    },
  },
  {
    name: 'Enter in a field does not replace a training, but moves to the button that does',
    async run(visit) {
      const page = await visit.open({ hash: shortTraining(visit, 10000) });
      await page.press('#set-iterations', 'Enter'); // nothing is there to be replaced
      await until(page, '#state', /^Training catch: iteration ([2-9]|\d\d)/);
      await page.click('#pause');
      await until(page, '#state', /^Paused/);
      await page.press('#set-rate', 'Enter');
      await assertUnchanged(page, '#state', 'another training starts');
      ok((await page.evaluate(() => document.activeElement.id)) === 'start', 'the focus does not move to the button');
      await page.keyboard.press('Enter');
      await until(page, '#state', /^(Getting ready|Training)/);
    },
  },
  {
    name: 'one tab stores its training, and a second says that its own is not stored until the first ends',
    async run(visit) {
      const context = await visit.context();
      const [first, second] = [await visit.open({ hash: shortTraining(visit, 10000), context }), await visit.open({ hash: shortTraining(visit), context })];
      await first.bringToFront();
      await trainAndPause(first);
      await untilStored(first, 'run', (run) => run?.paused === true);
      await second.bringToFront();
      await second.click('#start');
      await untilMessage(second, /not kept for a reload: another tab/);
      await until(second, '#state', /^Finished/);
      await untilStored(second, 'run', (run) => run?.paused === true);
      await first.bringToFront();
      await first.click('#reset');
      await untilStored(first, 'run', (run) => run === undefined);
      await second.bringToFront();
      await second.fill('#set-iterations', '10000');
      await trainAndPause(second);
      await untilStored(second, 'run', (run) => run?.paused === true);
    },
  },
  {
    name: 'a training that another tab has left waits on the shelf of the next tab, and is replaced only on request',
    async run(visit) {
      const context = await visit.context();
      const next = await visit.open({ hash: '#game=cartpole', context }); // it has looked for a kept run before there is one
      const first = await visit.open({ hash: shortTraining(visit, 10000), context });
      await trainAndPause(first);
      await untilStored(first, 'run', (run) => run?.paused === true);
      const [at] = /iteration \d+/.exec(await text(first, '#state'));
      await first.close();
      await next.bringToFront();
      await next.fill('#set-iterations', '2');
      await next.click('#start');
      await untilMessage(next, new RegExp(`Catch is paused at ${at}\\. To continue, pick it and press Resume`));
      await until(next, '#state', /^Finished cartpole: iteration 2 of 2/);
      await untilStored(next, 'shelf', Boolean);
      // A tab of the same game cannot take it up while another has it, and names it afterwards.
      await context.addInitScript(() => {
        const { request } = navigator.locks;
        navigator.locks.request = (name, ...more) => {
          (window.asked ??= []).push(name);
          return request.call(navigator.locks, name, ...more);
        };
      });
      const same = await visit.open({ hash: '#game=catch', context });
      await eventually('a request for the lock', () => same.evaluate(() => window.asked?.includes('grove-run')));
      await next.close();
      await same.bringToFront();
      await eventually('a free lock', () => same.evaluate(async () => (await navigator.locks.query()).held.length === 0));
      await same.click('#start');
      await untilMessage(same, new RegExp(`A training of Catch is paused at ${at}, left by another tab\\. Press Resume`));
      await until(same, '#state', /^Not started/);
      await until(same, '#train-here', /^Resume$/);
      await same.click('#train-here');
      await until(same, '#state', /^Training catch: iteration \d/);
      ok(Number(/iteration (\d+)/.exec(await text(same, '#state'))[1]) >= Number(at.split(' ')[1]), 'it starts from the beginning');
    },
  },
  {
    name: 'the range of the seeds leaves out those that have failed, and iterations that some lack',
    async run(visit) {
      const page = await visit.open();
      const mean = await page.evaluate(async () => {
        const { Curves } = await import('./curves.js');
        const curves = new Curves();
        const scores = { 1: [1, 2, 3], 2: [3, NaN, 5, 7], 3: [9] };
        for (const [seed, all] of Object.entries(scores)) all.forEach((score, i) => curves.add(seed, { iteration: i + 1, score }));
        curves.markFailed('3');
        return curves.chartData('score').mean;
      });
      const expected = [{ x: 1, y: 2, low: 1, high: 3 }, { x: 3, y: 4, low: 3, high: 5 }];
      ok(JSON.stringify(mean) === JSON.stringify(expected), `it is ${JSON.stringify(mean)}`);
    },
  },
  {
    name: 'seeds are named and coloured, and their data are saved as a file',
    async run(visit) {
      const page = await visit.open({ hash: `${shortTraining(visit)}&seeds=2` });
      await trainToEnd(page);
      const seeds = await page.locator('#seeds li').allTextContents();
      ok(seeds.join() === 'seed 1,seed 2,mean,range', `the seeds are ${seeds}`);
      const colours = await page.evaluate(() => [...document.querySelectorAll('#seeds .seed')].map((one) => getComputedStyle(one, '::before').borderTopColor));
      ok(new Set(colours).size === 2, `their colours are ${colours}`);
      const lines = (await download(page, '#csv')).bytes.toString().trim().split('\n');
      ok(lines.length === 27 && /^run,iteration,score/.test(lines[0]), `${lines.length} lines, ${lines[0]}`);
      ok(/^1,0,/.test(lines[1]) && /^1,12,/.test(lines[13]), `the first line is ${lines[1]}, that of the last iteration ${lines[13]}`);
    },
  },
  {
    name: 'several seeds side by side, and the same seed learns the same',
    webgpu: 'too',
    slow: true,
    async run(visit) {
      const page = await visit.open({ hash: `${shortTraining(visit)}&seeds=3` });
      const scores = async () => {
        await trainToEnd(page);
        return text(page, '#state');
      };
      const first = await scores();
      const agents = await page.locator('#agent option').allTextContents();
      for (const seed of [1, 2, 3]) ok(agents.includes(`Trained here, seed ${seed}`), `no agent of seed ${seed}: ${agents}`);
      const legend = (await page.locator('#seeds li').allTextContents()).join();
      ok(legend === 'seed 1,seed 2,seed 3,mean,range', `the legend of the curves is ${legend}`);
      await page.selectOption('#agent', 'here 3');
      await page.click('#beside summary');
      for (const seed of [1, 2]) await page.check(`#rivals input[value="here ${seed}"]`);
      await eventually('the seeds by name', async () => (await page.locator('#names span').allTextContents()).join(), (names) => /^Seed 3,(Untrained,)?Seed 1,Seed 2$/.test(names));
      await untilStepped(page);
      await visit.screenshot(page, 'seeds', true);
      ok((await scores()) === first, 'the same seeds give other scores');
      return first;
    },
  },
  {
    name: 'workers share a run where they may, and learn to the byte what one does',
    async run(visit) {
      const alone = [() => Object.defineProperty(globalThis, 'crossOriginIsolated', { value: false }), () => { delete globalThis.SharedArrayBuffer; }];
      const policies = [];
      for (const init of [undefined, ...alone]) {
        const page = await visit.open({ hash: '#game=catch&groups=128&iterations=40', init });
        const cores = init ? 1 : await page.evaluate(() => navigator.hardwareConcurrency);
        const workers = cores > 2 ? Math.min(cores - 1, 8) : cores;
        await page.click('#start');
        await until(page, '#stat-training', workers > 1 ? new RegExp(`CPU, ${workers} workers in WebAssembly`) : /CPU, in WebAssembly/);
        await until(page, '#state', /^Finished catch: iteration 40/);
        policies.push((await saveAgent(page)).bytes);
        await page.context().close();
      }
      ok(policies.every((policy) => policy.equals(policies[0])), 'together they learn another policy');
    },
  },
  {
    name: 'the module for all browsers learns about the same as the one with relaxed SIMD, if that is built',
    async run(visit) {
      const scores = [];
      const relaxed = existsSync(join(visit.site.folder, 'train-relaxed.js')) ? ['train-relaxed_bg.wasm'] : [];
      for (const module of [...relaxed, 'train_bg.wasm']) {
        const context = await visit.context();
        const asked = [];
        context.on('request', (request) => asked.push(new URL(request.url()).pathname.split('/').at(-1)));
        const page = await visit.open({ hash: shortTraining({ gpu: false }), context });
        await trainToEnd(page, /^Finished catch: iteration 12/);
        ok(asked.filter((name) => /^train.*wasm$/.test(name)).every((name) => name === module) && asked.includes(module), `it asked for ${asked.filter((name) => name.endsWith('wasm'))}`);
        scores.push(toNumber(/score ([−\d.]+)/.exec(await text(page, '#state'))[1]));
        await context.close();
        visit.site.instead['trainer.js'] = "export { importTrainer } from './trainer.js?real'; WebAssembly.validate = () => false;";
      }
      ok(scores.every((score) => Math.abs(score - scores[0]) < 0.1), `the scores are ${scores.join(' and ')}`);
      return scores.join(' and ');
    },
  },
  {
    name: 'settings out of range are reported, and nothing starts',
    async run(visit) {
      const page = await visit.open({ hash: shortTraining(visit) });
      for (const [id, value, right] of [['rate', '7', '0.002'], ['size', '1', '8'], ['width', '', '16'], ['groups', '2.5', '16']]) {
        await page.fill(`#set-${id}`, value);
        await page.click('#start');
        ok(await page.locator(`#set-${id}-note`).isVisible(), `no note for ${id} = ${value}`);
        ok((await page.locator(`#set-${id}`).getAttribute('aria-invalid')) === 'true', `${id} is not marked`);
        ok(/^Not started/.test(await text(page, '#state')), `it starts with ${id} = ${value}`);
        await page.fill(`#set-${id}`, right);
        ok(await page.locator(`#set-${id}-note`).isHidden(), `${id} is still wrong`);
        ok(await page.locator('#trouble').isHidden(), 'it still says that a setting is out of range');
      }
      await page.fill('#set-groups', '4096');
      await page.fill('#set-size', '64');
      await page.click('#start');
      await until(page, '#set-groups-note', /steps an iteration/);
      // A board of 400 numbers takes more memory than a ball and a paddle.
      const large = await visit.open({ hash: '#game=breakout&groups=1024&size=64&steps=16' });
      await large.click('#start');
      await until(large, '#set-groups-note', /^That makes 1,048,576 steps an iteration; this page takes at most 671,088\.$/);
    },
  },
  {
    name: 'a button restores the defaults, also by the keyboard, and the game keeps them',
    async run(visit) {
      const plain = await visit.open({ hash: '#game=catch' });
      const values = (page) => page.locator('#fields input, #fields select').evaluateAll((all) => all.map(({ value }) => value).join());
      await until(plain, '#settings-of', /Catch/);
      const defaults = await values(plain);
      const page = await visit.open({ hash: shortTraining(visit) });
      await until(page, '#settings-of', /Catch/);
      ok((await values(page)) !== defaults, 'the link changes nothing');
      await page.selectOption('#set-device', 'CPU');
      await page.fill('#set-rate', '7');
      await page.click('#start');
      ok(await page.locator('#trouble').isVisible(), 'a rate of 7 is not refused');
      await page.focus('#start');
      for (let i = 0; i < 2; i += 1) await page.keyboard.press('Tab'); // past Pause
      ok((await page.evaluate(() => document.activeElement.id)) === 'defaults', 'the keyboard does not reach the button');
      await page.keyboard.press('Enter');
      await untilMessage(page, /^The settings are the defaults again\./);
      ok((await values(page)) === defaults, `the form has ${await values(page)} instead of ${defaults}`);
      ok(await page.locator('#set-rate-note').isHidden(), 'a field is still wrong');
      ok(await page.locator('#trouble').isHidden(), 'it still says that a setting is out of range');
      ok(!/rate|groups|device/.test(page.url()), `the link is ${page.url()}`);
      ok(/^Not started/.test(await text(page, '#state')), 'the button starts a training');
      await pickGame(page, 'fruit');
      await until(page, '#settings-of', /Fruit/);
      await pickGame(page, 'catch');
      await until(page, '#settings-of', /Catch/);
      ok((await values(page)) === defaults, 'what was there before is back');
    },
  },
  {
    name: 'a training that collapses stops and says so',
    async run(visit) {
      visit.site.instead['trainer.js'] = `
        import { importTrainer as real } from './trainer.js?real';
        export async function importTrainer(name) {
          const { default: init, Training: Real, Place, Saved } = await real(name);
          class Training {
            static async create(...all) {
              const made = await Real.create(...all);
              let count = 0;
              const iterate = made.iterate.bind(made);
              made.iterate = () => (++count > 3 ? Promise.reject(new Error('the loss is NaN')) : iterate());
              return made;
            }
          }
          return { default: init, Training, Place, Saved };
        }`;
      const page = await visit.open({ hash: shortTraining(visit) });
      await page.click('#start');
      await until(page, '#trouble', /Seed 1 stopped after iteration 3: The loss is NaN\./);
      await until(page, '#state', /^Stopped catch: iteration 3/);
      ok(await page.locator('#trouble').isVisible(), 'there is no message beside the button');
      await visit.screenshot(page, 'nan', true);
      await untilStepped(page);
    },
  },
  {
    name: 'a missing training module is reported, and the page continues',
    async run(visit) {
      visit.site.instead['trainer.js'] = 'export function importTrainer() { throw new Error("broken on the way"); }';
      const page = await visit.open({ hash: shortTraining(visit) });
      await page.click('#start');
      await until(page, '#trouble', /Broken on the way\./);
      await untilStepped(page);
    },
  },
  {
    name: 'games of the training device are drawn from its memory, one or a thousand, also in a pause',
    webgpu: 'only',
    async run(visit) {
      const page = await visit.open({ hash: shortTraining(visit, 500) });
      await page.click('#start');
      await until(page, '#state', /iteration ([2-9]|\d\d)/);
      await page.click('#device-wall summary');
      const look = () => visit.describePicture(page, '#device-canvas canvas');
      const moves = async (when) => {
        await page.waitForFunction(() => document.querySelector('#device-canvas canvas'));
        const first = await eventually(`a wall ${when}`, look, ({ colours }) => colours >= 4);
        await eventually(`a wall that moves ${when}`, look, ({ hash }) => hash !== first.hash);
      };
      await moves('while it trains');
      await visit.screenshot(page, 'device-wall', true);
      await page.click('#pause');
      await until(page, '#state', /^Paused/);
      await moves('in a pause');
      for (const [place, games] of [[10, 1024], [0, 1]]) {
        await setSlider(page, '#device-games', place);
        await until(page, '#device-games-out', new RegExp(`^${games}$`));
        await moves(`of ${games}`);
        await visit.screenshot(page, `device-wall-${games}`, true);
      }
      await page.click('#device-wall summary');
      await page.waitForFunction(() => !document.querySelector('#device-canvas canvas'));
      await page.click('#pause');
      await until(page, '#state', /^Training/);
      await untilStepped(page);
    },
  },
];
