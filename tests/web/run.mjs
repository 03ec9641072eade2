// Runs the checks of this folder in headless Chromium, each in a page of its own, and prints a line
// for each: whether it holds, its largest error, its time. Ends with 1 if one fails, if a page logs
// an error or a warning, if there is no WebGPU, or if nothing is heard for too long.
//
// node run.mjs FOLDER [WORDS]: FOLDER is wasm-bindgen's output; WORDS pick the checks whose names
// have them.

import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const MINUTE_MS = 60_000;
const LIMIT_MS = 15 * MINUTE_MS; // for a check
const ARGUMENTS = [
  '--no-sandbox',
  '--enable-unsafe-webgpu',
  '--use-webgpu-adapter=swiftshader',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];
const PAGE = `<!doctype html><link rel="icon" href="data:,"><script type="module">
  import init, * as module from './grove_web_tests.js';
  // Errors of the device itself are no exceptions: they go to the console from here.
  const prototype = window.GPUAdapter?.prototype ?? {};
  const { requestDevice } = prototype;
  prototype.requestDevice = async function (...options) {
    const device = await requestDevice.apply(this, options);
    device.addEventListener('uncapturederror', (event) => console.error(event.error.message));
    device.lost.then((lost) => console.error('the device is lost: ' + lost.message));
    return device;
  };
  window.checks = init().then(() => module);
</script>`;
const FILES = {
  '/': ['text/html', async () => PAGE],
  '/grove_web_tests.js': ['text/javascript'],
  '/grove_web_tests_bg.wasm': ['application/wasm'],
};

const [folder, ...rest] = process.argv.slice(2);
const words = rest.join(' ');

const server = createServer(async (request, response) => {
  const [type, content] = FILES[request.url] ?? [];
  if (!type) return response.writeHead(404).end();
  const body = content ? await content() : await readFile(join(folder, request.url));
  response.writeHead(200, { 'Content-Type': type }).end(body);
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const address = `http://127.0.0.1:${server.address().port}/`;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ARGUMENTS,
});

/** Runs `ask` in a fresh page and returns its result; an error if the page logs one, crashes or is silent too long. */
async function runInPage(ask, argument) {
  const context = await browser.newContext();
  const page = await context.newPage();
  const complaints = [];
  let timer;
  const trouble = new Promise((_, fail) => {
    page.on('console', (message) => {
      if (['error', 'warning'].includes(message.type())) complaints.push(message.text());
    });
    page.on('pageerror', (error) => fail(error));
    page.on('crash', () => fail(new Error('the page has crashed')));
    timer = setTimeout(() => fail(new Error('time is up')), LIMIT_MS);
  });
  try {
    await page.goto(address);
    const value = await Promise.race([page.evaluate(ask, argument), trouble]);
    if (complaints.length > 0) throw new Error('the page complains');
    return value;
  } catch (error) {
    throw new Error([...complaints, error.message.split('\n')[0]].join('\n'));
  } finally {
    clearTimeout(timer);
    await context.close();
  }
}

let failed = 0;
try {
  const [device, names] = await runInPage(async () => {
    const checks = await window.checks;
    const device = await checks.device();
    const { vendor, architecture } = (await navigator.gpu.requestAdapter()).info;
    return [`${device}: ${vendor} ${architecture}`, checks.names()];
  });
  console.log(`${device}, Chromium ${browser.version()}`);
  const wanted = [...names.keys()].filter((i) => names[i].includes(words));
  if (wanted.length === 0) throw new Error(`no check has "${words}" in its name`);
  for (const i of wanted) {
    const start = performance.now();
    const time = () => `${((performance.now() - start) / 1000).toFixed(1)} s`.padStart(8);
    try {
      const error = await runInPage(async (i) => (await window.checks).check(i), i);
      console.log(`ok      ${error.toExponential(1).padStart(8)} ${time()}  ${names[i]}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED           ${time()}  ${names[i]}\n${error.message}`);
    }
  }
} catch (error) {
  failed += 1;
  console.log(`FAILED: ${error.message}`);
} finally {
  await browser.close();
  server.close();
}
process.exitCode = failed > 0 ? 1 : 0;
