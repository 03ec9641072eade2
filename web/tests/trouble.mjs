// When something is refused or lost: a clear message, and the page continues.

import { ok, pickGame, text, trainAndPause, trainToEnd, until, untilMessage, untilStepped, untilStored } from './visit.mjs';
import { shortTraining } from './training.mjs';

/** The training module, with changes of the runs that it makes or resumes: `spoil` is code about `run`. */
const spoiltTrainer = (spoil) => `
  import { importTrainer as real } from './trainer.js?real';
  export async function importTrainer(name) {
    const module = await real(name);
    const spoil = (run) => { ${spoil} return run; };
    const { create, resume } = module.Training;
    class Training {
      static create = async (...all) => spoil(await create.apply(module.Training, all));
      static resume = async (...all) => spoil(await resume.apply(module.Training, all));
    }
    return { ...module, Training };
  }`;

export default [
  {
    name: 'a stored training survives a reload on which it is refused or fails, until it is reset',
    async run(visit) {
      const { instead } = visit.site;
      const page = await visit.open({ hash: shortTraining(visit, 10000) });
      page.on('dialog', (dialog) => dialog.accept());
      await trainAndPause(page);
      await untilStored(page, 'run', (run) => run?.paused === true);
      const before = await text(page, '#state');
      instead['trainer.js'] = 'export function importTrainer() { throw new Error("broken on the way"); }';
      await page.reload();
      await until(page, '#trouble', /^Broken on the way\. To resume the training, reload the page\.$/);
      instead['trainer.js'] = spoiltTrainer("run.iterate = () => Promise.reject(new Error('the device is lost'));");
      await page.reload();
      await untilMessage(page, /training of Catch is still paused/);
      await until(page, '#state', /^Paused catch/);
      await page.click('#train-here');
      await until(page, '#trouble', /^Seed 1 stopped after iteration \d+: The device is lost\.$/);
      await until(page, '#state', /^Stopped catch/);
      delete instead['trainer.js'];
      await page.reload();
      await untilMessage(page, /Resuming the training of Catch/);
      await until(page, '#state', /^Training catch: iteration/);
      await page.click('#train-here');
      await until(page, '#state', /^Paused catch/);
      const reached = async () => Number(/iteration (\d+)/.exec(await text(page, '#state'))[1]);
      ok((await reached()) >= Number(/iteration (\d+)/.exec(before)[1]), 'it starts from the beginning');
      await page.click('#reset');
      await untilStored(page, 'run', (run) => run === undefined);
    },
  },
  {
    name: 'a failed training makes room for that of another game, and is resumed from its checkpoint',
    async run(visit) {
      const { instead } = visit.site;
      instead['trainer.js'] = spoiltTrainer(`
        const iterate = run.iterate.bind(run);
        let paused = false;
        addEventListener('message', ({ data }) => { paused ||= data.do === 'pause'; });
        run.iterate = () => (paused ? Promise.reject(new Error('the device is lost')) : iterate());`);
      const page = await visit.open({ hash: shortTraining(visit, 10000) });
      await trainAndPause(page);
      const [at] = /iteration \d+/.exec(await text(page, '#state'));
      await page.click('#pause');
      await until(page, '#state', /^Stopped catch/);
      delete instead['trainer.js'];
      // Enter in a field does not take its place.
      await page.press('#set-rate', 'Enter');
      ok((await page.evaluate(() => document.activeElement.id)) === 'start', 'the focus does not move to the button');
      ok((await text(page, '#start')) === 'Train again', `the button says ${await text(page, '#start')}`);
      await pickGame(page, 'fruit');
      await until(page, '#settings-of', /Fruit/);
      await page.fill('#set-iterations', '2');
      await page.click('#train-here');
      await untilMessage(page, new RegExp(`Catch is paused at ${at}\\. To continue, pick it and press Resume`));
      await until(page, '#state', /^Finished fruit: iteration 2 of 2/);
      await pickGame(page, 'catch');
      await until(page, '#train-here', /^Resume$/);
      await page.click('#train-here');
      await until(page, '#state', /^Training catch: iteration/);
    },
  },
  {
    name: 'a checkpoint that fails in a pause ends the run with a reason',
    async run(visit) {
      visit.site.instead['trainer.js'] = spoiltTrainer(`
        const save = run.save.bind(run);
        let pausing = false;
        addEventListener('message', ({ data }) => { pausing ||= data.do === 'pause'; });
        run.save = () => (pausing ? Promise.reject(new Error('the memory is exhausted')) : save());`);
      const page = await visit.open({ hash: shortTraining(visit, 10000) });
      await page.click('#start');
      await until(page, '#state', /^Training catch: iteration ([2-9]|\d\d)/);
      await page.click('#pause');
      await until(page, '#trouble', /^Seed 1 stopped after iteration \d+: The memory is exhausted\.$/);
      await until(page, '#state', /^Stopped catch/);
      ok(await page.locator('#start').isEnabled(), 'no other training can be started');
      await untilStored(page, 'run', (run) => run?.paused === false);
    },
  },
  {
    name: 'without workers the page says so and continues',
    async run(visit) {
      const page = await visit.open({ hash: shortTraining(visit), init: () => { window.Worker = class { constructor() { throw new Error('workers are switched off'); } }; } });
      await page.click('#start');
      await until(page, '#trouble', /^The training cannot be started: Workers are switched off\.$/);
      await until(page, '#train-here', /^Train an agent$/);
      await untilStepped(page);
    },
  },
  {
    name: 'a refused storage gives a message, and training continues',
    async run(visit) {
      const page = await visit.open({
        hash: shortTraining(visit),
        init: () => {
          const refuse = () => { throw new DOMException('storage is switched off', 'SecurityError'); };
          for (const name of ['indexedDB', 'localStorage']) Object.defineProperty(window, name, { get: refuse });
        },
      });
      await untilMessage(page, /stores nothing for the page.*storage is switched off/);
      await visit.screenshot(page, 'no-storage');
      await trainToEnd(page);
      await untilMessage(page, /Save the policy as a file/);
      await untilStepped(page);
    },
  },
  {
    name: 'a storage whose connection closes gives a message, and games and text train without it',
    async run(visit) {
      const page = await visit.open({
        hash: shortTraining(visit),
        init: () => { IDBDatabase.prototype.transaction = () => { throw new DOMException('the connection is closing', 'InvalidStateError'); }; },
      });
      await untilMessage(page, /stores nothing for the page \(the connection is closing\)/);
      await trainToEnd(page);
      await pickGame(page, 'sort');
      await until(page, '#text-state', /iteration \d/);
    },
  },
  {
    name: 'a lost device is replaced, and after a second loss the CPU draws',
    webgpu: 'only',
    async run(visit) {
      const page = await visit.open({
        init: () => {
          const { requestDevice } = GPUAdapter.prototype;
          window.devices = [];
          GPUAdapter.prototype.requestDevice = async function (...all) {
            const device = await requestDevice.apply(this, all);
            window.devices.push(device);
            return device;
          };
        },
      });
      visit.allow(/[Dd]evice.*(lost|destroyed)|(lost|destroyed).*[Dd]evice/);
      const lose = () => page.evaluate(() => window.devices.at(-1).destroy());
      ok((await page.evaluate(() => window.devices.length)) === 1, 'it draws with another device');
      await lose();
      await untilMessage(page, /GPU stopped responding; continuing on a new device/);
      ok((await page.evaluate(() => window.devices.length)) === 2, 'no other device was asked for');
      await untilStepped(page);
      ok((await visit.describePicture(page)).colours >= 4, 'nothing is drawn with the new device');
      await lose();
      await untilMessage(page, /GPU stopped responding; continuing on the CPU/);
      const notices = await page.locator('.notice').allTextContents();
      ok(notices.length === 1, `the message of the first loss stays: ${notices}`);
      await untilStepped(page);
      ok((await visit.describePicture(page)).colours >= 4, 'nothing is drawn on the 2D canvas');
      ok(/^Without WebGPU/.test(await text(page, '#renderer-note')), 'the line does not say so');
      await visit.screenshot(page, 'lost-device');
    },
  },
  {
    name: 'if a GPU never answers the CPU draws and trains',
    webgpu: 'only',
    async run(visit) {
      const page = await visit.open({ hash: shortTraining({ gpu: false }), init: () => { GPU.prototype.requestAdapter = () => new Promise(() => {}); } });
      ok(/^Without WebGPU.*does not answer/.test(await text(page, '#renderer-note')), 'the line does not say so');
      await untilStepped(page);
      ok((await visit.describePicture(page)).colours >= 4, 'nothing is drawn');
      await trainToEnd(page, /^Finished catch/);
    },
  },
  {
    name: 'a GPU that is requested and missing is reported',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch&device=WebGPU' });
      await page.click('#start');
      await until(page, '#trouble', /^WebGPU was asked for, but this browser offers no adapter\.$/);
      await until(page, '#state', /^Not started/);
    },
  },
  {
    name: 'a missing agent is reported, and another game continues',
    async run(visit) {
      const page = await visit.open();
      visit.allow(/404/);
      await page.route('**/policies/catch.safetensors', (route) => route.fulfill({ status: 404 }));
      await page.locator('#game input[value=catch]').click({ force: true }); // it does not stay
      await untilMessage(page, /No pretrained agent for catch was found/);
      ok(await page.locator('#game input[value=fruit]').isChecked(), 'a game without an agent is picked');
      // Neither does a link to it change what is trained.
      await page.locator('.notice button').first().click();
      await page.evaluate(() => { location.hash = '#game=catch&groups=16'; });
      await untilMessage(page, /No pretrained agent for catch was found/);
      ok(/Fruit/.test(await text(page, '#settings-of')), `the form has the ${await text(page, '#settings-of')}`);
      visit.allow(/ERR_FAILED/);
      await page.route('**/policies/cartpole.safetensors', (route) => route.abort());
      await page.locator('#game input[value=cartpole]').click({ force: true });
      await untilMessage(page, /The pretrained agent for cartpole cannot be fetched\. Is this device offline\?/);
      await untilStepped(page);
    },
  },
  {
    name: 'a page that cannot be started says so in place of the game',
    async run(visit) {
      visit.allow(/404|WebAssembly/);
      const context = await visit.context();
      await context.route('**/watch_bg.wasm', (route) => route.fulfill({ status: 404 }));
      const cut = await visit.open({ context, frame: false });
      await until(cut, '#waiting', /^The page could not be started \(.+\)\. Reload it to try again\.$/);
      await visit.screenshot(cut, 'not-started');
      const without = await visit.open({ frame: false, init: () => { delete window.WebAssembly; } });
      await until(without, '#waiting', /^This page needs WebAssembly, which is disabled in this browser\.$/);
      // A module that does not arrive, and one of another version.
      visit.allow(/503|does not provide an export/);
      for (const answer of [{ status: 503 }, { contentType: 'text/javascript', body: 'export const $ = 0;' }]) {
        const parted = await visit.context();
        await parted.route('**/dom.js', (route) => route.fulfill(answer));
        await until(await visit.open({ context: parted, frame: false }), '#waiting', /^The page could not be started\. Reload it to try again; it needs Chrome/);
      }
    },
  },
  {
    name: 'without its first agent the page begins with an untrained one, and trains',
    async run(visit) {
      visit.allow(/404/);
      const context = await visit.context();
      await context.route('**/policies/catch.safetensors', (route) => route.fulfill({ status: 404 }));
      const page = await visit.open({ context, hash: shortTraining(visit) });
      await untilMessage(page, /No pretrained agent for catch was found/);
      await until(page, '#agent option:checked', /^Untrained$/);
      await page.click('#train-here');
      await until(page, '#state', /^Finished catch/);
    },
  },
];
