// Text: a language model learns to sort on the page, watched completion by completion, and is asked.

import { findViolations } from './looking.mjs';
import { assertUnchanged, download, eventually, ok, pickGame, text, until, untilMessage, untilStored, waitFrames } from './visit.mjs';

/** The percentage of held-out prompts that must be answered rightly before the training ends. */
const MIN_RIGHT_PERCENT = 60;

/** A training that is over soon. */
const BRIEF = { 'text-length': 3, 'text-prompts': 8, 'text-size': 4, 'text-fit': 10, 'text-iterations': 30 };

/** Opens the page at the text, with some settings. */
export async function openText(visit, settings = {}, options = {}) {
  const page = await visit.open({ hash: '#game=sort', ...options });
  // It trains by itself; checks begin with settings of their own.
  await until(page, '#text-state', /^(SFT|GRPO|Getting|Finished)/);
  await page.click('#text-reset');
  await page.click('#text-settings summary');
  for (const [id, value] of Object.entries(settings)) await page.fill(`#${id}`, `${value}`);
  await page.click('#text-settings summary');
  return page;
}

const completionRows = (page) => page.locator('#completions tbody tr');

/** Starts a training of text and pauses it after some iterations. */
async function trainAndPause(page) {
  await page.click('#text-start');
  await until(page, '#text-state', /iteration ([5-9]|\d\d)/);
  await page.click('#text-pause');
  await until(page, '#text-state', /^Paused: iteration/);
}

export default [
  {
    name: 'beside the games a language model learns to sort, step by step',
    async run(visit) {
      const context = await visit.context();
      const asked = new Set();
      context.on('request', (request) => asked.add(/(\w+)[\w-]*_bg\.wasm$/.exec(request.url())?.[1]));
      const page = await visit.open({ context });
      await pickGame(page, 'sort');
      ok(await page.locator('#stage').isHidden(), 'the game stays');
      ok(page.url().includes('game=sort'), 'the link does not say it');
      ok(/in ascending order/.test(await text(page, '#text-about')), 'there is no explanation');
      ok(/smaller than that of grove train sort/.test(await text(page, '#text-settings')), 'its size is not shown');
      await completionRows(page).first().waitFor();
      ok(asked.has('text'), `it asked for the modules ${[...asked].filter(Boolean)}`);
      await until(page, '#text-state', /^SFT, imitating solutions: iteration \d+ of \d+/);
      await visit.screenshot(page, 'text-imitating');
      await until(page, '#text-state', /^GRPO, learning from rewards: .* tokens a second, .* left/);
      const rightOf = (state) => Number(/(\d+) % of held-out prompts right/.exec(state)?.[1] ?? 0);
      const state = await eventually('right answers', () => text(page, '#text-state'), (state) => rightOf(state) >= MIN_RIGHT_PERCENT || /^(Finished|Stopped)/.test(state));
      await visit.screenshot(page, 'text-learning', true);
      ok(rightOf(state) >= MIN_RIGHT_PERCENT, `too few are right: ${state}`);
      // The newest prompts, with shades, rewards and their parts.
      ok((await page.locator('#completions th').allTextContents()).slice(0, 6).join() === 'completion,reward,digits,exact,format,adv.', 'other columns');
      ok((await page.locator('#completions .mark.right').count()) > 0, 'none is ticked');
      const shades = await page.locator('#completions .tokens span').evaluateAll((all) => new Set(all.map((one) => one.className.split(' ')[0])).size);
      ok(shades >= 3, `there are ${shades} shades`);
      for (const title of ['Right answers', 'Reward', 'Tokens of a completion', 'Entropy']) {
        const figure = page.locator('#text-charts figure', { hasText: title });
        // Charts are drawn less often than iterations end.
        await eventually(`a value of ${title}`, () => figure.locator('output').textContent(), (value) => /\d/.test(value));
      }
      await pickGame(page, 'catch');
      await until(page, '#rules', /ball falls/);
      ok(await page.locator('#text').isHidden(), 'the text stays');
      return state;
    },
  },
  {
    name: 'the training of text pauses, continues, ends and is reset',
    async run(visit) {
      const page = await openText(visit, { ...BRIEF, 'text-iterations': 400 });
      await trainAndPause(page);
      await assertUnchanged(page, '#text-state', 'it trains in the pause', 90);
      await page.click('#text-pause');
      await until(page, '#text-state', /^GRPO, learning/);
      await page.click('#text-reset');
      await until(page, '#text-state', /^Not started/);
      await page.waitForFunction(() => /nothing yet/.test(document.querySelector('#text-charts canvas').ariaLabel)); // the curves are gone
      await page.click('#text-settings summary');
      await page.fill('#text-iterations', '12');
      await page.click('#text-start');
      await until(page, '#text-state', /^Finished: iteration 12 of 12/);
      await page.fill('#text-rate', '7');
      await page.click('#text-start');
      ok((await text(page, '#text-state')).startsWith('Finished'), 'a rate of 7 is taken');
    },
  },
  {
    name: 'a button restores the defaults of text, also by the keyboard',
    async run(visit) {
      const values = (page) => page.locator('#text-fields input').evaluateAll((all) => all.map(({ value }) => value).join());
      const defaults = await values(await openText(visit));
      const page = await openText(visit, BRIEF);
      ok((await values(page)) !== defaults, 'nothing is changed');
      await page.click('#text-settings summary');
      await page.focus('#text-seed');
      await page.keyboard.press('Tab');
      ok((await page.evaluate(() => document.activeElement.id)) === 'text-defaults', 'the keyboard does not reach the button');
      await page.keyboard.press('Enter');
      await untilMessage(page, /^The settings are the defaults again\./);
      ok((await values(page)) === defaults, `the form has ${await values(page)} instead of ${defaults}`);
      ok((await text(page, '#text-state')).startsWith('Not started'), 'the button starts a training');
    },
  },
  {
    name: 'a reload resumes a training of text, which ends the same to the byte',
    async run(visit) {
      const settings = { ...BRIEF, 'text-iterations': 300 };
      const model = async (page) => {
        await until(page, '#text-state', /^Finished: iteration 300 of 300/);
        return (await download(page, '#text-save')).bytes;
      };
      const whole = await openText(visit, settings);
      await whole.click('#text-start');
      const expected = await model(whole);
      await whole.context().close();

      const page = await openText(visit, settings, { options: {} });
      page.on('dialog', (dialog) => dialog.accept());
      await trainAndPause(page);
      await page.click('#text-pause');
      await untilStored(page, 'text', (run) => run?.paused === false);
      await page.reload();
      await untilMessage(page, /Resuming the training of the language model/);
      ok((await page.inputValue('#text-length')) === '3', 'the form has other settings');
      ok(Buffer.compare(await model(page), expected) === 0, 'it is another model');
      await page.click('#text-curves summary');
      const lines = (await download(page, '#text-csv')).bytes.toString().trim().split('\n');
      ok(lines.length === 301, `the curves have ${lines.length} lines`);
      await untilStored(page, 'text', (run) => run === undefined);
      await page.reload();
      await until(page, '#text-state', /^(SFT|Getting)/); // from the beginning
      // A second training of the same tab is kept as the first was.
      await page.click('#text-settings summary');
      await page.fill('#text-iterations', '4000');
      await page.click('#text-start');
      await until(page, '#text-state', /iteration \d/);
      await page.click('#text-reset');
      await trainAndPause(page);
      const state = await text(page, '#text-state');
      await untilStored(page, 'text', (run) => run?.paused === true);
      await page.reload();
      await until(page, '#text-state', /^Paused: iteration/);
      ok((await text(page, '#text-state')).startsWith(state.split(',')[0]), 'it is not where it was');
    },
  },
  {
    name: 'a typed prompt is answered before training and by the trained model, which is saved and loaded',
    async run(visit) {
      const page = await openText(visit, BRIEF);
      await page.fill('#question', 'no digits');
      await page.click('#ask-now');
      await until(page, '#ask-about', /Type some digits/);
      await page.fill('#question', '3 1 2');
      await page.click('#ask-now');
      await until(page, '#text-state', /^Not trained yet/);
      ok((await page.locator('#answers li').count()) === 5, 'not five answers');
      await page.click('#text-pause');
      await until(page, '#text-state', /^Finished: iteration 30 of 30/);
      const surest = await page.locator('#answers code').first().textContent();
      await page.fill('#question', '31245');
      await page.click('#ask-now');
      await until(page, '#ask-about', /trained on 3 digits; 5 may not work/);
      // The form is of the next training.
      await page.click('#text-settings summary');
      await page.fill('#text-length', '9');
      await page.fill('#question', '31402');
      await page.click('#ask-now');
      await until(page, '#answers', /./);
      ok(/trained on 3 digits; 5 may/.test(await text(page, '#ask-about')), `it says: ${await text(page, '#ask-about')}`);
      await page.fill('#text-length', '3');
      await page.click('#text-settings summary');
      await page.fill('#question', '1'.repeat(32));
      await page.click('#ask-now');
      await until(page, '#ask-about', /^Type at most 31 digits\.$/);
      ok((await page.locator('#answers li').count()) === 0, 'the answers to another prompt stay');
      await page.fill('#question', '1'.repeat(31));
      await page.click('#ask-now');
      await until(page, '#ask-about', /trained on 3 digits; 31 may not work/);
      const { name, bytes } = await download(page, '#text-save');
      ok(name === 'sort.safetensors', `saved is ${name}`);
      ok(bytes.toString('latin1', 8, 4000).includes('embed_tokens'), 'the tensors have not their names');
      await page.click('#text-reset');
      await page.fill('#question', '312');
      await page.click('#ask-now');
      await until(page, '#text-state', /^Not trained yet/);
      await page.setInputFiles('#text-files', { name: 'mine.safetensors', mimeType: 'application/octet-stream', buffer: bytes });
      await untilMessage(page, /Loaded mine\.safetensors/);
      // It imitates nothing, but continues with rewards.
      await until(page, '#text-state', /^(GRPO, learning|Finished)/);
      await until(page, '#text-state', /^Finished: iteration 30 of 30/);
      await page.setInputFiles('#text-files', { name: 'no.safetensors', mimeType: 'application/octet-stream', buffer: Buffer.from('nothing') });
      await untilMessage(page, /no\.safetensors: .*[Nn]ot an intact safetensors file/);
      ok((await text(page, '#text-state')).startsWith('Finished'), 'what was trained is gone');
      // On a game's view it opens the text.
      await pickGame(page, 'catch');
      await until(page, '#rules', /ball falls/);
      await page.setInputFiles('#files', { name: 'again.safetensors', mimeType: 'application/octet-stream', buffer: bytes });
      await untilMessage(page, /Loaded again\.safetensors/);
      ok(await page.locator('#text').isVisible(), 'the text is not opened');
      return `its surest answer to 312 is ${surest}`;
    },
  },
  {
    name: 'files without a model change neither a training of text nor the view',
    async run(visit) {
      const page = await openText(visit, { ...BRIEF, 'text-iterations': 4000 });
      await trainAndPause(page);
      await untilStored(page, 'text', (run) => run?.paused === true);
      const before = await text(page, '#text-state');
      const policy = await page.evaluate(async () => [...new Uint8Array(await (await fetch('policies/catch.safetensors')).arrayBuffer())]);
      const header = Buffer.from('{"model.embed_tokens.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}');
      const size = Buffer.alloc(8);
      size.writeBigUInt64LE(BigInt(header.length));
      const foreign = { name: 'foreign.safetensors', buffer: Buffer.concat([size, header, Buffer.alloc(4)]) };
      const refused = async (selector, { name, buffer }) => {
        await page.setInputFiles(selector, { name, buffer, mimeType: 'application/octet-stream' });
        await untilMessage(page, new RegExp(`${name.replace('.', '\\.')}: \\S`));
        ok((await text(page, '#text-state')) === before, `after ${name} it is ${await text(page, '#text-state')}`);
      };
      await refused('#text-files', { name: 'picture.png', buffer: Buffer.from('\x89PNG') });
      await refused('#text-files', { name: 'policy.safetensors', buffer: Buffer.from(policy) });
      await refused('#text-files', foreign);
      // A folder, as browsers pass it.
      await page.evaluate(() => {
        const folder = new File([], 'folder');
        Object.defineProperty(folder, 'arrayBuffer', { value: () => Promise.reject(new DOMException('It could not be found.', 'NotFoundError')) });
        const event = new DragEvent('drop', { bubbles: true, cancelable: true });
        Object.defineProperty(event, 'dataTransfer', { value: { files: [folder], types: ['Files'] } });
        document.body.dispatchEvent(event);
      });
      await untilMessage(page, /folder: It could not be found/);
      await pickGame(page, 'catch');
      await until(page, '#rules', /ball falls/);
      await refused('#files', foreign);
      ok(await page.locator('#text').isHidden(), 'the text is opened');
      // Neither does Enter in a field take its place.
      await pickGame(page, 'sort');
      await page.click('#text-settings summary');
      await page.press('#text-rate', 'Enter');
      ok((await text(page, '#text-state')) === before, 'Enter starts another training');
      await untilStored(page, 'text', (run) => run?.paused === true);
      page.on('dialog', (dialog) => dialog.accept());
      // A second tab does not begin by itself, and says why.
      const second = await visit.open({ hash: '#game=sort', context: page.context() });
      await untilMessage(second, /Another tab is training the language model/);
      ok((await text(second, '#text-state')) === 'Not started', 'it trains by itself');
      await page.reload();
      await untilMessage(page, /training of the language model is still paused/);
    },
  },
  {
    name: 'completions are filtered by text, reward, end and iteration',
    async run(visit) {
      const page = await openText(visit, { ...BRIEF, 'text-length': 4, 'text-iterations': 16 });
      await page.click('#text-start');
      await until(page, '#text-state', /^Finished/);
      await until(page, '#filter output', /^32 of 32 of iteration 16$/);
      const rewards = () => page.locator('#completions td:nth-child(2)').evaluateAll((all) => all.map((one) => Number(one.textContent.replace('−', '-'))));
      await page.fill('#filter [name=least]', '0.2');
      await page.fill('#filter [name=most]', '0.6');
      await until(page, '#filter output', /that fit, of 512|none of 512 fits/);
      ok((await rewards()).every((reward) => reward >= 0.2 && reward <= 0.6), `of other rewards: ${await rewards()}`);
      await page.click('#filter button[type=reset]');
      await page.selectOption('#filter [name=end]', 'cut');
      await until(page, '#filter output', /that fit, of 512|none of 512 fits/);
      const cut = await page.locator('#completions tbody tr').count();
      ok((await page.locator('#completions small[title="cut off"]').count()) === cut, 'not all are cut off');
      await page.click('#filter button[type=reset]');
      await page.fill('#filter [name=iteration]', '12');
      await until(page, '#completions .prompt', /iteration 12,/);
      const [prompt] = await page.locator('#completions .prompt code').allTextContents();
      await page.click('#filter button[type=reset]');
      await page.fill('#filter [name=text]', prompt);
      await until(page, '#filter output', /that fit/);
      ok((await page.locator('#completions .prompt code').allTextContents()).every((one) => one === prompt), 'other prompts');
      await page.fill('#filter [name=text]', 'xyz');
      await until(page, '#filter output', /^none of 512 fits$/);
    },
  },
  {
    name: 'text fits every width, light and dark, and axe-core finds nothing',
    async run(visit) {
      const found = [];
      for (const [width, height] of [[320, 640], [390, 844], [1280, 900], [1920, 1080]]) {
        for (const colorScheme of ['light', 'dark']) {
          const page = await openText(visit, { ...BRIEF, 'text-length': 8, 'text-iterations': 14 }, { options: { viewport: { width, height }, colorScheme } });
          await page.fill('#question', '42719305');
          await page.click('#ask-now');
          await until(page, '#text-state', /^Not trained yet/);
          await page.click('#text-pause');
          await until(page, '#text-state', /^Finished/);
          await waitFrames(page, 30);
          const wide = await page.evaluate(() => document.documentElement.scrollWidth);
          if (wide > width) found.push(`at ${width} the page is ${wide} px wide`);
          await visit.screenshot(page, `text-${width}-${colorScheme}`, true);
          found.push(...(await findViolations(page, `${width}, ${colorScheme}`)));
          await page.context().close();
        }
      }
      ok(found.length === 0, found.join('; '));
    },
  },
];
