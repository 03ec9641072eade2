// A visit to the page: its browser contexts, what goes wrong in them, and what checks ask again and again.

import { join } from 'node:path';

export function ok(holds, otherwise) {
  if (!holds) throw new Error(otherwise);
}

export const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

export class Visit {
  constructor(browser, site, { gpu, program, shots }) {
    Object.assign(this, { browser, site, gpu, program, shots });
    this.complaints = [];
    // What Chromium itself says where it has no adapter.
    this.allowed = gpu ? [] : [/^No available adapters\.$/];
    this.contexts = [];
    this.cleaners = [];
    this.broken = new Promise((_, fail) => { this.fail = fail; });
    this.broken.catch(() => {});
  }

  /// Complaints that this check brings about on purpose.
  allow(...patterns) {
    this.allowed.push(...patterns);
  }

  complain(text) {
    if (!this.allowed.some((pattern) => pattern.test(text))) this.complaints.push(text);
  }

  async context(options = {}) {
    const context = await this.browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
    this.contexts.push(context);
    return context;
  }

  /// Opens the page, and waits for the first picture. `init` runs in the page before all else.
  async open({ hash = '', context, options, init, address = this.site.address, frame = true } = {}) {
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
    await page.addInitScript(watchTasks);
    if (init) await page.addInitScript(init);
    await page.goto(address + hash);
    const marked = () => ['first-frame', 'ready'].every((name) => performance.getEntriesByName(name).length > 0);
    if (frame) await page.waitForFunction(marked, null, { timeout: 20_000 });
    return page;
  }

  /// Fails if there was something to complain about.
  judge() {
    if (this.site.missing.length > 0) this.complain(`asked for what is not there: ${this.site.missing.join(', ')}`);
    ok(this.complaints.length === 0, 'the page complains');
  }

  async end() {
    for (const clean of this.cleaners) await clean();
    for (const context of this.contexts) await context.close();
  }

  /// Keeps a picture of a view.
  async shot(page, name, fullPage = false) {
    if (!this.shots) return;
    await page.screenshot({ path: join(this.shots, `${name}${this.gpu ? '' : '-2d'}.png`), fullPage });
  }

  /// What is to be seen of an element: how many colours, its size in pixels, and a number for the whole.
  async picture(page, selector = '#stage .canvas canvas') {
    const png = await page.locator(selector).screenshot();
    const blank = await (this.blank ??= this.context().then((context) => context.newPage()));
    return blank.evaluate(async (base64) => {
      const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
      const image = await createImageBitmap(new Blob([bytes], { type: 'image/png' }));
      const context = new OffscreenCanvas(image.width, image.height).getContext('2d');
      context.drawImage(image, 0, 0);
      const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
      const hash = pixels.reduce((hash, pixel) => Math.imul(hash ^ pixel, 16777619), 7);
      return { colours: new Set(pixels).size, hash, width: image.width, height: image.height };
    }, png.toString('base64'));
  }
}

/// Runs in the page: notes the main thread's long tasks.
function watchTasks() {
  window.longTasks = [];
  new PerformanceObserver((list) => {
    for (const { startTime, duration } of list.getEntries()) window.longTasks.push({ startTime, duration });
  }).observe({ type: 'longtask', buffered: true });
}

export const text = (page, selector) => page.locator(selector).textContent();

/// Waits until the text of an element is so, and gives it.
export async function until(page, selector, pattern, seconds = 15) {
  const wanted = { selector, source: pattern.source };
  const there = ({ selector, source }) => new RegExp(source).exec(document.querySelector(selector)?.textContent ?? '')?.[0];
  const handle = await page.waitForFunction(there, wanted, { timeout: seconds * 1000 }).catch(async () => {
    const last = await page.evaluate((selector) => document.querySelector(selector)?.textContent, selector);
    throw new Error(`${selector} is not ${pattern} within ${seconds} s, but: ${last}`);
  });
  return handle.jsonValue();
}

/// Waits for a message to the visitor.
export const message = (page, pattern, seconds) => until(page, '#notices', pattern, seconds);

/// The step of the game that is shown, and which game it is.
export async function state(page) {
  const [, time, game] = /step (\d+) .* game (\d+)/.exec(await text(page, '#time'));
  return { time: Number(time), game: Number(game) };
}

/// Whether time goes on: the step changes within two seconds.
export async function goesOn(page) {
  const before = await text(page, '#time');
  await page.waitForFunction((before) => document.querySelector('#time').textContent !== before, before, { timeout: 5000 })
    .catch(() => { throw new Error('the game stands still'); });
}

/// Sets a slider as a hand does.
export const slide = (page, selector, value) => page.locator(selector).fill(`${value}`);

/// Starts anew from a seed, standing still.
export async function restart(page, seed) {
  if ((await text(page, '#play')) === 'Pause') await page.click('#play');
  await page.fill('#seed', `${seed}`);
  // What stood there may have been the start of another game.
  await page.evaluate(() => { document.querySelector('#time').textContent = ''; });
  await page.click('#restart');
  await until(page, '#time', /step 0 /);
}

/// All that the panel says of the first steps of the game that is shown.
export async function course(page, steps) {
  const seen = [];
  for (let i = 0; i < steps; i += 1) {
    seen.push(await page.evaluate(() => ['#time', '#score', '#probabilities', '#features'].map((one) => document.querySelector(one).textContent).join('|')));
    const before = await text(page, '#time');
    await page.click('#single');
    await page.waitForFunction((before) => document.querySelector('#time').textContent !== before, before, { timeout: 5000 });
  }
  return seen;
}
