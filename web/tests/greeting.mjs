// The page as it greets visitors: what is in the first view, what moves, and messages.

import { saveAgent } from './keeping.mjs';
import { serve } from './server.mjs';
import { eventually, gameNames, ok, pickGame, readPixels, text, until, untilMessage, untilStored } from './visit.mjs';

const SIZES = [[320, 640], [390, 844], [768, 1024], [1280, 800], [1920, 1080]];

/** Runs in the page: notes every layout shift that no input has caused, as Web Vitals count them. */
export function recordShifts() {
  window.shifts = [];
  new PerformanceObserver((list) => {
    for (const { hadRecentInput, value, sources } of list.getEntries()) {
      if (!hadRecentInput) window.shifts.push({ value, of: sources.map(({ node }) => node?.id || node?.className || node?.nodeName) });
    }
  }).observe({ type: 'layout-shift', buffered: true });
}

/** The most that may shift on a page. */
const MAX_SHIFT = 0.1;

export async function assertStill(page, when) {
  const shifts = await page.evaluate(() => window.shifts);
  const sum = shifts.reduce((sum, { value }) => sum + value, 0);
  ok(sum <= MAX_SHIFT, `${when} it shifts by ${sum.toFixed(2)}: ${JSON.stringify(shifts)}`);
  return `${when} ${sum.toFixed(3)}`;
}

/** Presses Train on a page at rest, and waits until the curve on the screen has risen: until the newest greedy score
    is above that of the first weights. Returns the milliseconds. */
export const measureRise = (page) => page.evaluate(async () => {
  while (performance.getEntriesByName('warm').length === 0) await new Promise(requestAnimationFrame);
  const start = performance.now();
  document.getElementById('train-here').click();
  const number = (text) => Number(text?.replace('−', '-'));
  for (;;) {
    await new Promise(requestAnimationFrame);
    const [, now, first] = /greedy ([−\d.]+), after ([−\d.]+) at first/.exec(document.querySelector('figure.score canvas').ariaLabel) ?? [];
    if (number(now) > number(first)) return performance.now() - start;
  }
});

export default [
  {
    name: 'a press on Train shows the stage, the curve and the progress of learning at every size, without scrolling',
    async run(visit) {
      const times = [];
      for (const [width, height] of SIZES) {
        const page = await visit.open({ folded: true, options: { viewport: { width, height } } });
        ok((await page.locator('#names span').allTextContents()).join() === 'Pretrained,Untrained', 'no untrained agent is beside the trained one');
        ok(/learns this game in 10 seconds/.test(await text(page, '#learn-title')), 'nothing says what is to be seen');
        times.push(`${Math.round(await measureRise(page))} ms at ${width} x ${height}`);
        await until(page, '#state-here', /^Training, iteration \d.*Your agent scores/);
        ok((await page.locator('#agent').inputValue()).startsWith('here'), 'another agent is on the stage');
        for (const id of ['stage', 'train-here', 'state-here', 'progress', 'score-chart']) {
          const box = await page.locator(`#${id}`).boundingBox();
          ok(box.y >= 0 && box.y + box.height <= height, `at ${width} x ${height} #${id} ends at ${Math.round(box.y + box.height)}`);
          if (id === 'stage') ok(box.height <= 0.55 * height + 1, `the stage is ${box.height} high of ${height}`);
        }
        ok((await page.evaluate(() => scrollY)) === 0, 'it has scrolled');
        const cut = await page.locator('#game span, #names span, #score-chart figcaption').evaluateAll((all) => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent));
        ok(cut.length === 0, `at ${width} x ${height} cut off are ${cut}`);
        await visit.screenshot(page, `hero-${width}`);
        await page.context().close();
      }
      return `the curve has risen after ${times.join(', ')}`;
    },
  },
  {
    name: 'nothing moves by itself: at the start, in training a game, and in training text',
    async run(visit) {
      const page = await visit.open({ folded: true, init: recordShifts });
      await until(page, '#mean', /–/);
      ok(await page.locator('#ruler .now').isHidden(), 'a mean of no games is marked');
      const shifts = [await assertStill(page, 'at the start')];
      await page.click('#train-here');
      await until(page, '#state-here', /iteration ([5-9]|\d\d)/);
      shifts.push(await assertStill(page, 'in training'));
      await page.close();
      const other = await visit.open({ hash: '#game=sort', folded: true, init: recordShifts });
      await until(other, '#text-state', /iteration ([5-9]|\d\d)/);
      shifts.push(await assertStill(other, 'in training text'));
      return shifts.join(', ');
    },
  },
  {
    name: 'every game has the same stage, edges that meet, and a page of at most 1,800 pixels',
    async run(visit) {
      const page = await visit.open({ folded: true, options: { viewport: { width: 1280, height: 800 } } });
      const boxes = new Set();
      for (const game of await gameNames(page)) {
        await pickGame(page, game);
        await until(page, '#names', /Untrained/);
        const [stage, learn, lab] = await Promise.all(['#stage', '#learn', '#lab'].map((one) => page.locator(one).boundingBox()));
        boxes.add(JSON.stringify(stage));
        ok(Math.abs(learn.x + learn.width - lab.x - lab.width) < 1 && Math.abs(stage.x - lab.x) < 1, `edges of ${game} do not meet`);
        const height = await page.evaluate(() => document.documentElement.scrollHeight);
        ok(height <= 1800, `the page of ${game} is ${height} px high`);
      }
      ok(boxes.size === 1, `the stages are ${[...boxes]}`);
    },
  },
  {
    name: 'a board that the network sees is a picture for each channel',
    async run(visit) {
      const page = await visit.open({ hash: '#game=breakout' });
      const maps = await page.locator('#maps canvas').evaluateAll((all) => all.map(({ width, height, ariaLabel }) => `${ariaLabel}, ${width} x ${height}`));
      ok(maps.length === 4 && maps.every((map) => map.endsWith('10 x 10')), `the maps are ${maps}`);
      ok((await page.locator('#features li').count()) === 0, 'cells are in the list, too');
      await eventually('bricks', async () => (await readPixels(page, '#maps canvas')).some((pixel) => pixel >>> 24 > 0));
    },
  },
  {
    name: 'a number that rounds up to the next unit has that unit',
    async run(visit) {
      const page = await visit.open();
      const numbers = await page.evaluate(async () => {
        const { formatShort } = await import('./dom.js');
        return [999, 999.6, 12_340, 999_400, 999_600, 4.3e6].map(formatShort).join();
      });
      ok(numbers === '999,1.0k,12.3k,999k,1.0M,4.3M', `the numbers are ${numbers}`);
    },
  },
  {
    name: 'a message is at the bottom right, alone, and disappears after six seconds',
    async run(visit) {
      const page = await visit.open();
      const { count, delay, right, bottom, left } = await page.evaluate(async () => {
        const { showNotice } = await import('./dom.js');
        const real = window.setTimeout;
        const timers = [];
        window.setTimeout = (call, delay) => timers.push([call, delay]);
        showNotice('one');
        showNotice('two');
        window.setTimeout = real;
        const notices = document.querySelectorAll('.notice');
        const box = notices[0].getBoundingClientRect();
        const seen = { count: notices.length, delay: timers.at(-1)[1], right: innerWidth - box.right, bottom: innerHeight - box.bottom };
        timers.at(-1)[0]();
        return { ...seen, left: document.querySelectorAll('.notice').length };
      });
      ok(count === 1 && delay === 6000 && left === 0, `${count} messages, for ${delay} ms, then ${left}`);
      ok(right < 40 && bottom < 40, `it is ${right} px from the right and ${bottom} from the bottom`);
    },
  },
  {
    name: 'a link carries an agent',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch&groups=16&size=8&width=16&layers=1&iterations=3' });
      await page.click('#train-here');
      await until(page, '#state', /^Finished catch/);
      const { bytes } = await saveAgent(page);
      await page.click('#share-agent');
      await page.waitForFunction(() => location.hash.includes('agent='));
      const { hash } = new URL(page.url());
      const other = await visit.open({ hash });
      await until(other, '#agent option:checked', /From the link/);
      ok(Buffer.compare((await saveAgent(other)).bytes, bytes) === 0, 'it is another agent');
      await other.reload();
      await until(other, '#agent option:checked', /From the link/);
      // The address has it as long as it is on the stage, and a copy of the link says so.
      await other.evaluate(() => { navigator.clipboard.writeText = async () => {}; });
      const carries = () => /agent=/.test(other.url());
      await other.selectOption('#agent', 'ready');
      ok(!carries(), 'the link carries an agent that is not on the stage');
      await other.click('#share');
      await untilMessage(other, /^Link copied: .*not the agent/);
      await other.selectOption('#agent', 'link');
      ok(carries(), 'the link lacks the agent that is chosen from the list');
      await other.click('#share');
      await untilMessage(other, /^Link copied: anyone who opens it meets this agent/);
      await pickGame(other, 'fruit');
      await until(other, '#references', /7\.75/);
      ok(!carries(), 'the link of another game carries the agent');
      // One that cannot be read leaves no trace.
      const cut = await page.evaluate(async (packed) => {
        const { pack, unpack } = await import('./share.js');
        return pack((await unpack(packed)).slice(0, -100));
      }, new URLSearchParams(hash.slice(1)).get('agent'));
      for (const packed of ['AAAA', 'y0jNyckHAA', cut]) {
        const broken = await visit.open({ hash: `#game=catch&agent=${packed}` });
        await until(broken, '#notices', /agent in the link cannot be read/);
        await pickGame(broken, 'fruit');
        await until(broken, '#rules', /Fruits fall/);
        ok(!/From the link/.test(await text(broken, '#agent')), 'it is an agent to choose');
        await broken.close();
      }
      // Nor does a text that unpacks to more than any agent has.
      const swollen = await page.evaluate(async () => (await import('./share.js')).pack(new Uint8Array(20e6)));
      const large = await visit.open({ hash: `#game=catch&agent=${swollen}` });
      await untilMessage(large, /agent in the link cannot be read: The agent in the link is too large\./);
      return `${hash.length} characters`;
    },
  },
  {
    name: 'on a host that sends no headers a service worker isolates the page, and links lead to the project',
    async run(visit) {
      const site = await serve(visit.site.folder, true);
      visit.cleaners.push(() => site.close());
      site.instead['ready.js'] = "export { default, relaxed } from './ready.js?real'; export const source = 'https://example.org/grove';";
      const page = await visit.open({ address: site.address });
      await eventually('an isolated page', () => page.evaluate(() => crossOriginIsolated).catch(() => false));
      await page.waitForFunction(() => performance.getEntriesByName('ready').length > 0);
      const links = await page.locator('#links a').evaluateAll((all) => all.map(({ href }) => href));
      const about = await page.evaluate(() => [document.title, ...['og:title', 'og:description', 'og:image'].map((name) => document.querySelector(`meta[property="${name}"]`)?.content)]);
      ok(about.every(Boolean) && /learn a game/.test(about[0]), `for those who share it: ${about}`);
      ok(links.length === 3 && links.every((link) => link.startsWith('https://example.org/grove')), `the links are ${links}`);
      // The page has its policy from itself.
      visit.allow(/inline script/);
      const ran = await page.evaluate(() => {
        document.head.append(Object.assign(document.createElement('script'), { textContent: 'window.ran = true' }));
        return Boolean(window.ran);
      });
      ok(!ran, 'the page runs a script that is not one of its files');
      // A visitor who has begun before the service worker is there is not disturbed; the next visit is isolated.
      const late = () => {
        const there = new Promise((done) => { window.arrive = done; });
        const { get } = Object.getOwnPropertyDescriptor(ServiceWorkerContainer.prototype, 'ready');
        Object.defineProperty(ServiceWorkerContainer.prototype, 'ready', { get() { return there.then(() => get.call(this)); } });
      };
      const eager = await visit.open({ address: site.address, init: late, frame: false, folded: true });
      await eager.waitForFunction(() => performance.getEntriesByName('first-frame').length > 0);
      await eager.click('#takeover');
      await eager.evaluate(() => window.arrive());
      await eager.waitForFunction(() => performance.getEntriesByName('ready').length > 0);
      ok(/Leave/.test(await text(eager, '#takeover')), 'the page is reloaded under the visitor');
      await eager.reload();
      await eventually('an isolated next visit', () => eager.evaluate(() => crossOriginIsolated).catch(() => false));
      // The service worker leaves redirects to the browser.
      await eager.goto(`${site.address}index.html`);
      ok(eager.url() === site.address && (await eager.evaluate(() => crossOriginIsolated)), `a redirect leads to ${eager.url()}`);
    },
  },
  {
    name: 'every action of every game has a button with its name',
    async run(visit) {
      const page = await visit.open();
      for (const game of await gameNames(page)) {
        await pickGame(page, game);
        await until(page, '#names', /Untrained/);
        await page.click('#takeover');
        await until(page, '#takeover', /Leave/);
        const actions = await page.locator('#probabilities span').allTextContents();
        const pads = await page.locator('#pads button').evaluateAll((all) => all.map((pad) => pad.firstChild.textContent));
        ok(pads.join() === actions.join(), `the actions of ${game} are ${actions}, its buttons ${pads}`);
        await page.keyboard.press('Escape');
      }
      const taken = await page.evaluate(async () => {
        const { Takeover } = await import('./takeover.js');
        const takeover = new Takeover({ change() {}, go() {}, next() {} });
        takeover.setGame(['wait', 'one', 'two']);
        takeover.isOn = true;
        const [, , pad] = document.querySelectorAll('#pads button');
        pad.dispatchEvent(new PointerEvent('pointerdown', { pointerId: 1 }));
        const held = takeover.action(takeover.actions);
        pad.dispatchEvent(new PointerEvent('pointerup', { pointerId: 1 }));
        const pressed = [held, takeover.action(takeover.actions)];
        pad.click(); // as a screen reader does
        const key = (ctrlKey) => dispatchEvent(new KeyboardEvent('keydown', { key: '2', code: 'Digit2', ctrlKey }));
        const next = () => pressed.push(takeover.action(takeover.actions));
        next();
        next();
        key(true);
        next();
        key(false);
        next();
        next();
        dispatchEvent(new Event('blur'));
        next();
        return pressed;
      });
      ok(taken.join() === '2,-1,2,-1,-1,1,1,-1', `the actions are ${taken}`);
    },
  },
  {
    name: 'the page says so of a game whose network it does not train, and trains another after it',
    async run(visit) {
      const page = await visit.open({ hash: '#game=recall', folded: true });
      ok(await page.locator('#train-here').isDisabled(), 'it offers to train');
      ok(/grove train recall/.test(await text(page, '#state-here')), `it says: ${await text(page, '#state-here')}`);
      await pickGame(page, 'catch');
      await until(page, '#learn-title', /10 seconds/);
      ok(!(await page.locator('#train-here').isDisabled()), 'it offers no training');
    },
  },
  {
    name: 'a paused training of one game does not block another, and waits for its game',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch&groups=16&size=8&width=16&layers=1&iterations=5000' });
      page.on('dialog', (dialog) => dialog.accept());
      await page.click('#train-here');
      await until(page, '#state-here', /^Training, iteration ([2-9]|\d\d)/);
      await page.click('#train-here');
      await until(page, '#state-here', /^Paused at iteration/);
      const [at] = /iteration \d+/.exec(await text(page, '#state-here'));
      await pickGame(page, 'fruit');
      await until(page, '#train-here', /^Train an agent$/);
      await page.fill('#set-iterations', '2');
      await page.click('#train-here');
      await untilMessage(page, new RegExp(`Catch is paused at ${at}\\. To continue, pick it and press Resume`));
      await until(page, '#state', /^Finished fruit: iteration 2 of 2/);
      await pickGame(page, 'catch');
      await until(page, '#train-here', /^Resume$/);
      await until(page, '#state-here', new RegExp(`^Paused at ${at} of 5000\\. Fruit catcher: Done`));
      // It waits through a reload, too.
      await untilStored(page, 'shelf', Boolean);
      await page.reload();
      await until(page, '#train-here', /^Resume$/);
      await until(page, '#state-here', new RegExp(`^Paused at ${at} of 5000\\.$`));
      await page.click('#train-here');
      await until(page, '#state', /^Training catch: iteration \d/);
      const [, later] = /iteration (\d+)/.exec(await text(page, '#state'));
      ok(Number(later) >= Number(at.split(' ')[1]), `it begins at ${later} after ${at}`);
      await untilStored(page, 'shelf', (shelf) => !shelf);
    },
  },
];
