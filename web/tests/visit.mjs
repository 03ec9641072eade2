// A visit to the page: its browser contexts, what goes wrong in them, and what checks ask again and again.

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';

/** Fails with a message unless a condition holds. */
export function ok(holds, failure) {
  if (!holds) throw new Error(failure);
}

/** Upper limit of every wait, in milliseconds. It ends a hang and decides nothing else, so that a busy machine fails
    no check. */
export const HANG_MS = 5 * 60_000;

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** Asks until the answer holds, and gives it; `what` names the state that is waited for. */
export async function eventually(what, ask, holds = Boolean) {
  for (const end = Date.now() + HANG_MS; ;) {
    const answer = await ask();
    if (holds(answer)) return answer;
    ok(Date.now() < end, `waited in vain for ${what}; the last is ${JSON.stringify(answer)}`);
    await pause(50);
  }
}

export class Visit {
  constructor(browser, site, { gpu, program, shots }) {
    Object.assign(this, { browser, site, gpu, program, shots });
    this.complaints = [];
    // Chromium's own message without an adapter.
    this.allowed = gpu ? [] : [/^No available adapters\.$/];
    this.contexts = [];
    this.cleaners = [];
    this.broken = new Promise((_, fail) => { this.fail = fail; });
    this.broken.catch(() => {});
  }

  /** Complaints that this check brings about on purpose. */
  allow(...patterns) {
    this.allowed.push(...patterns);
  }

  complain(text) {
    if (!this.allowed.some((pattern) => pattern.test(text))) this.complaints.push(text);
  }

  async context(options = {}) {
    // On a GPU that is software, drawing a large picture takes most of the processors from all else.
    const viewport = this.gpu ? { width: 640, height: 450 } : { width: 1280, height: 900 };
    const context = await this.browser.newContext({ viewport, ...options });
    context.setDefaultTimeout(HANG_MS);
    this.contexts.push(context);
    return context;
  }

  /** Opens the page, and waits for the first picture. `init` runs in the page before all else; the details are unfolded
      unless the check looks at the page as it greets visitors, `folded`. */
  async open({ hash = '', context, options, init, address = this.site.address, frame = true, folded = false } = {}) {
    const page = await (context ?? (await this.context(options))).newPage();
    const { origin } = new URL(address);
    page.on('console', (message) => {
      if (['error', 'warning'].includes(message.type())) this.complain(message.text());
    });
    page.on('pageerror', (error) => this.complain(`${error.message}`));
    page.on('crash', () => this.fail(new Error('the page has crashed')));
    page.on('request', (request) => {
      const url = request.url();
      if (!url.startsWith(`${origin}/`) && !/^(data|blob):/.test(url)) this.complain(`a request to ${url}`);
    });
    await page.addInitScript(recordLongTasks);
    if (init) await page.addInitScript(init);
    await page.goto(address + hash);
    const marked = () => ['first-frame', 'ready'].every((name) => performance.getEntriesByName(name).length > 0);
    if (frame) await page.waitForFunction(marked);
    if (!folded) await page.evaluate(() => { for (const id of ['details', 'senses']) document.getElementById(id).open = true; });
    return page;
  }

  /** Fails if there was something to complain about. */
  assertNoComplaints() {
    if (this.site.missing.length > 0) this.complain(`asked for what is not there: ${this.site.missing.join(', ')}`);
    ok(this.complaints.length === 0, 'the page complains');
  }

  async end() {
    for (const clean of this.cleaners) await clean();
    for (const context of this.contexts) await context.close();
  }

  /** Keeps a picture of a view. */
  async screenshot(page, name, fullPage = false) {
    if (!this.shots) return;
    await page.screenshot({ path: join(this.shots, `${name}${this.gpu ? '' : '-2d'}.png`), fullPage });
  }

  /** Describes the picture of an element: how many colours, its size in pixels, and a number for the whole. */
  async describePicture(page, selector = '#stage .canvas canvas') {
    const png = await page.locator(selector).screenshot();
    const blank = await (this.blank ??= this.context().then((context) => context.newPage()));
    return blank.evaluate(async (base64) => {
      const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
      const image = await createImageBitmap(new Blob([bytes], { type: 'image/png' }));
      const context = new OffscreenCanvas(image.width, image.height).getContext('2d', { willReadFrequently: true });
      context.drawImage(image, 0, 0);
      const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
      const hash = pixels.reduce((hash, pixel) => Math.imul(hash ^ pixel, 16777619), 7);
      return { colours: new Set(pixels).size, hash, width: image.width, height: image.height };
    }, png.toString('base64'));
  }
}

/** Runs in the page: notes the main thread's long tasks. */
function recordLongTasks() {
  window.longTasks = [];
  new PerformanceObserver((list) => {
    for (const { startTime, duration } of list.getEntries()) window.longTasks.push({ startTime, duration });
  }).observe({ type: 'longtask', buffered: true });
}

/** The pixels of the last canvas that a selector finds, read from a copy: Chromium warns if a canvas that the page
    draws on is read twice, and how often a check reads depends on how fast the page is. */
export async function readPixels(page, selector) {
  return page.locator(selector).last().evaluate((canvas) => {
    const context = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
    context.drawImage(canvas, 0, 0);
    return [...new Uint32Array(context.getImageData(0, 0, canvas.width, canvas.height).data.buffer)];
  });
}

export const text = (page, selector) => page.locator(selector).textContent();

/** The names of the games to pick from, in the page's order; the choice of text is none. */
export const gameNames = (page) => page.locator('#game input').evaluateAll((all) => all.map(({ value }) => value).filter((name) => name !== 'sort'));

export const pickGame = (page, game) => page.locator(`#game input[value=${game}]`).check({ force: true });

/** Starts a training and waits for its end. */
export async function trainToEnd(page, state = /^Finished/) {
  await page.click('#start');
  await until(page, '#state', state);
}

/** Starts a training of catch and pauses it after some iterations. */
export async function trainAndPause(page) {
  await page.click('#start');
  await until(page, '#state', /^Training catch: iteration ([2-9]|\d\d)/);
  await page.click('#pause');
  await until(page, '#state', /^Paused catch/);
}

/** Lets the page draw so many frames. */
export const waitFrames = (page, count) => page.evaluate(async (count) => {
  for (let i = 0; i < count; i += 1) await new Promise(requestAnimationFrame);
}, count);

/** Fails if the text of an element changes within so many frames. */
export async function assertUnchanged(page, selector, failure, count = 40) {
  const before = await text(page, selector);
  await waitFrames(page, count);
  const after = await text(page, selector);
  ok(after === before, `${failure}: ${before}, then ${after}`);
}

/** Waits until what the browser's storage has under a name holds: its size in bytes if it is a file, whether it is a
    paused run; undefined if there is nothing. */
export const untilStored = (page, name, holds) => eventually(`${name} in the storage`, () => page.evaluate((name) => new Promise((done, fail) => {
  const opening = indexedDB.open('grove', 1);
  opening.onupgradeneeded = () => opening.transaction.abort();
  opening.onerror = () => done(undefined); // the page has not made it yet
  opening.onsuccess = () => {
    const store = opening.result.transaction('policies').objectStore('policies');
    const cursor = store.openCursor(IDBKeyRange.bound(name, `${name}\uffff`));
    cursor.onerror = () => fail(cursor.error);
    cursor.onsuccess = () => {
      opening.result.close();
      const value = cursor.result?.value;
      done(value && { bytes: value.byteLength, paused: value.paused });
    };
  };
}), name), holds);

/** Clicks an element that offers a file: the file's path, name and bytes. */
export async function download(page, selector) {
  const [file] = await Promise.all([page.waitForEvent('download'), page.click(selector)]);
  const path = await file.path();
  return { path, name: file.suggestedFilename(), bytes: await readFile(path) };
}

/** Waits until the text of an element is so, and gives it. */
export async function until(page, selector, pattern) {
  const wanted = { selector, source: pattern.source };
  const there = ({ selector, source }) => new RegExp(source).exec(document.querySelector(selector)?.textContent ?? '')?.[0];
  const handle = await page.waitForFunction(there, wanted).catch(async () => {
    const last = await page.evaluate((selector) => document.querySelector(selector)?.textContent, selector);
    throw new Error(`${selector} is not ${pattern}, but: ${last}`);
  });
  return handle.jsonValue();
}

/** Waits for a message to the visitor. */
export const untilMessage = (page, pattern) => until(page, '#notices', pattern);

/** The step of the game that is shown, and which game it is. */
export async function shownStep(page) {
  const [, time, game] = /step (\d+) .* game (\d+)/.exec(await text(page, '#time'));
  return { time: Number(time), game: Number(game) };
}

/** Waits until the text of an element is another. */
export const untilChanged = (page, selector, before) =>
  page.waitForFunction(([selector, before]) => document.querySelector(selector).textContent !== before, [selector, before])
    .catch(() => { throw new Error(`${selector} stays ${before}`); });

/** Waits until time has gone on. */
export const untilStepped = async (page) => untilChanged(page, '#time', await text(page, '#time'));

/** Sets a slider as a hand does. */
export const setSlider = (page, selector, value) => page.locator(selector).fill(`${value}`);

/** Restarts the game from a seed, paused. */
export async function restart(page, seed) {
  if ((await text(page, '#play')) === 'Pause') await page.click('#play');
  await page.fill('#seed', `${seed}`);
  // The time shown may be that of another game's start.
  await page.evaluate(() => { document.querySelector('#time').textContent = ''; });
  await page.click('#restart');
  await until(page, '#time', /step 0 /);
}

/** Waits until the picture of a game that stands still is the same twice, its last motion being over, and gives it. */
export async function untilStillPicture(visit, page) {
  let last;
  return eventually('a picture that stands still', async () => {
    const [before, now] = [last, await visit.describePicture(page)];
    last = now;
    return { ...now, still: before?.hash === now.hash };
  }, ({ still }) => still);
}

/** All that the panel says of the first steps of the game that is shown. */
export async function recordSteps(page, steps) {
  const seen = [];
  for (let i = 0; i < steps; i += 1) {
    seen.push(await page.evaluate(() => ['#time', '#score', '#probabilities', '#features'].map((one) => document.querySelector(one).textContent).join('|')));
    const before = await text(page, '#time');
    await page.click('#single');
    await untilChanged(page, '#time', before);
  }
  return seen;
}
