// A page of a user's own game (examples/own_page): it is watched, played, and trained.

import { ok, text, trainToEnd, until, untilStepped } from './visit.mjs';

export default [
  {
    name: 'a page of a user\'s own game, without a look and a trained agent, shows, plays and trains it',
    webgpu: 'too',
    async run(visit) {
      const page = await visit.open();
      ok((await page.locator('#game input').count()) === 1, 'it has other games, too');
      ok(await page.locator('#game input[value=boat]').isChecked(), 'it shows another game');
      await until(page, '#agent option:checked', /Untrained/);
      await until(page, '#learn-title', /^Watch an agent learn this game$/);
      ok((await text(page, '#features')).includes('current'), 'it lacks the names of the features');
      await untilStepped(page);
      ok((await visit.describePicture(page)).colours >= 3, 'nothing is drawn');
      await visit.screenshot(page, 'own-page');
      await page.click('#takeover');
      await until(page, '#takeover', /Leave/);
      await page.keyboard.press('Escape');
      await trainToEnd(page, /^Finished boat: .*greedy/);
      const [, greedy] = /greedy ([\d.]+)/.exec(await text(page, '#state'));
      ok(Number(greedy) > 45, `its greedy score is ${greedy} of 50`);
      await visit.screenshot(page, 'own-page-trained', true);
      return `greedy ${greedy}`;
    },
  },
];
