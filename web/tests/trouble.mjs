// When something is refused or lost: a clear message, and the page goes on.

import { goesOn, message, ok, text, until } from './visit.mjs';
import { small } from './training.mjs';

export default [
  {
    name: 'a refused storage gives a message, and training goes on',
    async run(visit) {
      const page = await visit.open({
        hash: small(visit),
        init: () => {
          const refuse = () => { throw new DOMException('storage is switched off', 'SecurityError'); };
          for (const name of ['indexedDB', 'localStorage']) Object.defineProperty(window, name, { get: refuse });
        },
      });
      await message(page, /stores nothing for the page.*storage is switched off/);
      await visit.shot(page, 'no-storage');
      await page.click('#start');
      await until(page, '#state', /^Finished/);
      await message(page, /Save the policy as a file/);
      await goesOn(page);
    },
  },
  {
    name: 'a lost device is replaced, one lost again is done without',
    only: true,
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
      await message(page, /GPU stopped responding; continuing on a new device/);
      ok((await page.evaluate(() => window.devices.length)) === 2, 'no other device was asked for');
      await goesOn(page);
      ok((await visit.picture(page)).colours >= 4, 'nothing is drawn with the new device');
      await lose();
      await message(page, /GPU stopped responding; continuing on the CPU/);
      const notices = await page.locator('.notice').allTextContents();
      ok(notices.length === 1, `what was told of the first loss stays: ${notices}`);
      await goesOn(page);
      ok((await visit.picture(page)).colours >= 4, 'nothing is drawn on the 2D canvas');
      ok(/^Without WebGPU/.test(await text(page, '#way')), 'the line does not say so');
      await visit.shot(page, 'lost-device');
    },
  },
  {
    name: 'a GPU that never answers is done without',
    only: true,
    async run(visit) {
      const page = await visit.open({ init: () => { GPU.prototype.requestAdapter = () => new Promise(() => {}); } });
      ok(/^Without WebGPU.*does not answer/.test(await text(page, '#way')), 'the line does not say so');
      await goesOn(page);
      ok((await visit.picture(page)).colours >= 4, 'nothing is drawn');
    },
  },
  {
    name: 'a missing agent is said, and another game goes on',
    async run(visit) {
      const page = await visit.open();
      visit.allow(/404/);
      await page.route('**/policies/catch.safetensors', (route) => route.fulfill({ status: 404 }));
      await page.locator('#game input[value=catch]').click({ force: true }); // it does not stay
      await message(page, /No pretrained agent for catch was found/);
      ok(await page.locator('#game input[value=fruit]').isChecked(), 'a game without an agent is picked');
      visit.allow(/ERR_FAILED/);
      await page.route('**/policies/cartpole.safetensors', (route) => route.abort());
      await page.locator('#game input[value=cartpole]').click({ force: true });
      await message(page, /The pretrained agent for cartpole cannot be fetched\. Is this device offline\?/);
      await goesOn(page);
    },
  },
];
