// Keeping policies: as files, and in the browser's storage.

import { download, ok, pickGame, recordSteps, restart, text, trainToEnd, until, untilMessage, untilStepped, untilStored } from './visit.mjs';
import { shortTraining } from './training.mjs';

/** Saves the agent on the stage. */
export const saveAgent = (page) => download(page, '#save');

/** Loads files, given as `{ name, buffer }` or paths. */
export const loadAgents = (page, files) => page.setInputFiles('#files', files.map?.((file) => file.buffer ? { mimeType: 'application/octet-stream', ...file } : file) ?? files);

/** The settings (TOML) in the header of a policy file. */
export function settingsOf(bytes) {
  const length = Number(bytes.readBigUInt64LE(0));
  return JSON.parse(JSON.parse(bytes.subarray(8, 8 + length).toString()).__metadata__.grove).config;
}

export default [
  {
    name: 'a policy is saved and loaded again, and plays the same',
    async run(visit) {
      const page = await visit.open({ hash: shortTraining(visit) });
      await trainToEnd(page);
      const about = await text(page, '#agent-about');
      await restart(page, 4);
      const first = await recordSteps(page, 12);
      const { name, bytes } = await saveAgent(page);
      ok(name === 'catch.safetensors', `the file is called ${name}`);
      const config = settingsOf(bytes);
      ok(/env = "catch"/.test(config) && /hidden = \[\s*16,?\s*\]/.test(config), `its settings are ${config}`);

      const other = await visit.open();
      await loadAgents(other, [{ name, buffer: bytes }]);
      await untilMessage(other, /Loaded catch\.safetensors/);
      ok((await text(other, '#agent-about')) === about, 'another policy is loaded');
      ok(await other.locator('#game input[value=catch]').isChecked(), 'the game is not picked');
      await restart(other, 4);
      ok((await recordSteps(other, 12)).join() === first.join(), 'it plays differently');
      ok(Buffer.compare((await saveAgent(other)).bytes, bytes) === 0, 'the file is another after the round');
      return `${bytes.length} bytes`;
    },
  },
  {
    name: 'settings and weights also load as two files, and by drag and drop',
    async run(visit) {
      const page = await visit.open({ hash: '#game=cartpole' });
      const { bytes } = await saveAgent(page);
      const config = Buffer.from(settingsOf(bytes));
      await pickGame(page, 'fruit');
      await until(page, '#references', /7\.75/);
      await loadAgents(page, [{ name: 'config.toml', buffer: config }, { name: 'weights.safetensors', buffer: bytes }]);
      await untilMessage(page, /Loaded config\.toml and weights\.safetensors/);
      ok(await page.locator('#game input[value=cartpole]').isChecked(), 'the game is not picked');
      const other = await visit.open();
      await other.evaluate((base64) => {
        const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File([bytes], 'dropped.safetensors'));
        document.body.dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true }));
      }, bytes.toString('base64'));
      await untilMessage(other, /Loaded dropped\.safetensors/);
      const isTaken = await other.evaluate(() => {
        const dataTransfer = new DataTransfer();
        dataTransfer.setData('text/plain', '64');
        return !document.querySelector('#set-groups').dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true }));
      });
      ok(!isTaken, 'a text cannot be dropped into a field');
      ok(await other.locator('#game input[value=cartpole]').isChecked(), 'the game is not picked');
    },
  },
  {
    name: 'the last policy is kept in the browser',
    async run(visit) {
      const context = await visit.context();
      const page = await visit.open({ hash: shortTraining(visit), context });
      await trainToEnd(page);
      const about = await text(page, '#agent-about');
      const { bytes } = await saveAgent(page);
      // A finished run is forgotten after its policy is kept.
      await untilStored(page, 'last', (kept) => kept?.bytes === bytes.length);
      await untilStored(page, 'run', (kept) => kept === undefined);
      await page.close();
      const again = await visit.open({ context });
      await until(again, '#agent', /Trained here last time/);
      await again.selectOption('#agent', 'kept');
      ok((await text(again, '#agent-about')) === about, 'another policy is kept');
      ok(Buffer.compare((await saveAgent(again)).bytes, bytes) === 0, 'another file is kept');
    },
  },
  {
    name: 'an agent that is offered later does not move the names over the boards of a paused game',
    async run(visit) {
      const context = await visit.context({ reducedMotion: 'reduce' });
      const page = await visit.open({ context });
      await page.evaluate(async () => {
        const { keepLast } = await import('./keep.js');
        await keepLast(new Uint8Array(await (await fetch('policies/fruit.safetensors')).arrayBuffer()));
      });
      await page.close();
      const again = await visit.open({ context });
      await until(again, '#agent', /Trained here last time/);
      await again.waitForFunction(() => {
        const places = [...document.querySelectorAll('#names .who')].map(({ style }) => style.left);
        return places.length === 2 && places.every(Boolean);
      });
    },
  },
  {
    name: 'without locks of the browser, of tabs that ask for one at the same time a single one gets it',
    async run(visit) {
      const init = () => Object.defineProperty(Navigator.prototype, 'locks', { value: undefined });
      const context = await visit.context();
      const pages = [await visit.open({ context, init }), await visit.open({ context, init })];
      const ask = (page, count) => page.evaluate(async (count) => {
        const { lockRun } = await import('./keep.js');
        const releases = (await Promise.all(Array.from({ length: count }, () => lockRun('check')))).filter(Boolean);
        window.release ??= releases[0];
        return releases.length;
      }, count);
      const numbers = await Promise.all(pages.map((page) => ask(page, 4)));
      ok(numbers[0] + numbers[1] === 1, `${numbers} of them get it`);
      ok((await ask(pages[0], 1)) === 0, 'a later one gets it, too');
      await pages[numbers[0] === 1 ? 0 : 1].evaluate(() => window.release());
      ok((await ask(pages[0], 1)) === 1, 'nobody gets it once it is released');
    },
  },
  {
    name: 'stored data that cannot be read is reported, and the page trains',
    async run(visit) {
      const context = await visit.context();
      const page = await visit.open({ context });
      await page.evaluate(async () => {
        const { keepLast, keepRuns } = await import('./keep.js');
        await keepLast(Uint8Array.of(1, 2, 3));
        await keepRuns({ run: { game: 'catch' }, shelf: 'nothing' });
      });
      await page.close();
      const again = await visit.open({ hash: shortTraining(visit), context });
      await untilMessage(again, /^The agent trained here last time cannot be read: \S/);
      await trainToEnd(again);
      await untilStepped(again);
    },
  },
  {
    name: 'a run that an earlier page has stored has its fields, and what is no run is none',
    async run(visit) {
      const page = await visit.open();
      const [earlier, current, none] = await page.evaluate(async () => {
        const { readRun } = await import('./control.js');
        const rest = { saved: { 1: { sections: [] } }, records: {} };
        const [seedRuns, settings] = [[{ seed: 1 }], { iterations: 3 }];
        const runs = [{ wanted: seedRuns, own: settings, ...rest }, { seedRuns, settings, ...rest }];
        return [...runs.map((run) => JSON.stringify(readRun(run))), [undefined, 'nothing', { seedRuns }, { ...rest }].map(readRun).filter(Boolean).length];
      });
      ok(earlier === current && /"seedRuns":\[\{"seed":1\}\],"settings":\{"iterations":3\}/.test(earlier), `it is ${earlier}, not ${current}`);
      ok(none === 0, `${none} are runs`);
    },
  },
  {
    name: 'recorded games that cannot be read are reported and replaced',
    async run(visit) {
      const context = await visit.context();
      const page = await visit.open({ context });
      await page.evaluate(async () => {
        const { keepGames } = await import('./keep.js');
        const { Policy } = await import('./watch.js');
        const file = await (await fetch('policies/catch.safetensors')).arrayBuffer();
        const { env, settings } = JSON.parse(new Policy(new Uint8Array(file)).about());
        await keepGames(`${env} ${JSON.stringify(settings)}`, Uint8Array.of(1, 2, 3));
      });
      await page.close();
      const again = await visit.open({ hash: '#game=catch', context });
      await untilMessage(again, /^Your recorded games cannot be read \(.+\)\. The next ones take their place\./);
      ok(await again.locator('#mine').isHidden(), 'games that cannot be read are offered');
      await untilStepped(again);
    },
  },
  {
    name: 'a full storage is reported',
    async run(visit) {
      const page = await visit.open({
        hash: shortTraining(visit),
        init: () => {
          IDBObjectStore.prototype.put = function () { this.transaction.abort(); return {}; };
          Object.defineProperty(IDBTransaction.prototype, 'error', { get: () => new DOMException('', 'QuotaExceededError') });
        },
      });
      await page.click('#start');
      await untilMessage(page, /stores nothing for the page \(its storage is full\)\. Save the policy as a file/);
      await until(page, '#state', /^Finished/);
      await untilStepped(page);
    },
  },
  {
    name: 'broken and foreign files get a message, and the page continues',
    async run(visit) {
      const page = await visit.open();
      const { bytes } = await saveAgent(page);
      const foreign = Buffer.from('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}');
      const size = Buffer.alloc(8);
      size.writeBigUInt64LE(BigInt(foreign.length));
      const huge = Buffer.alloc(16, 255);
      const broken = {
        'empty.safetensors': Buffer.alloc(0), 'text.safetensors': Buffer.from('no policy at all, but words'),
        'cut.safetensors': bytes.subarray(0, bytes.length - 100), 'head.safetensors': bytes.subarray(0, 40),
        'foreign.safetensors': Buffer.concat([size, foreign, Buffer.alloc(4)]), 'huge.safetensors': huge,
        'other.safetensors': Buffer.from(bytes.toString('latin1').replace(/env = (\\+")fruit/, 'env = $1chess'), 'latin1'),
        'nan.safetensors': Buffer.concat([bytes.subarray(0, bytes.length - 4), Buffer.from([0, 0, 192, 127])]),
      };
      const about = await text(page, '#agent-about');
      for (const [name, buffer] of Object.entries(broken)) {
        await loadAgents(page, [{ name, buffer: buffer.length ? buffer : Buffer.from('') }]);
        await untilMessage(page, new RegExp(`${name.replace('.', '\\.')}: \\S.{10,}`));
        ok(!/unreachable|RuntimeError|undefined/.test(await text(page, '#notices')), `the message is ${await text(page, '#notices')}`);
        ok(!/^Loaded/.test(await text(page, '#notices')), `${name} is taken`);
        ok((await text(page, '#agent-about')) === about, 'the agent is gone');
        await page.locator('.notice button').first().click();
        await untilStepped(page);
      }
      await loadAgents(page, [{ name: 'config.toml', buffer: Buffer.from('env = "fruit"') }]);
      await untilMessage(page, /Choose one policy file/);
      await untilStepped(page);
    },
  },
];
