// Runs the checks of the page in headless Chromium without WebGPU. Those with `webgpu: 'too'`, about drawing and the
// training device, run in one with WebGPU (SwiftShader) as well, those with `webgpu: 'only'` there alone. Prints a line
// for each: whether it holds, its time, what it saw. A check fails, too, if a page logs an error or a warning, asks
// another host, or asks for what is not there. Checks wait for states, never for so many seconds; a limit on each ends a
// hang. One that fails is run once more, and both runs are printed. Those with `slow: true` take minutes on SwiftShader:
// in the browser with WebGPU they run with --slow, or if WORDS pick them.
//
// node run.mjs DIST [--own] [--measure] [--slow] [--program GROVE] [--shots DIR] [WORDS]: DIST is the built page; with
// --own it is that of examples/own_page, which has a check of its own; with --measure times are measured and printed
// instead of anything being checked; GROVE is the native program, for what they do together; DIR takes a picture of
// each view (with --measure "a picture" that of web/page/preview.png); WORDS pick the checks whose names have them, and
// "with WebGPU" or "without WebGPU" one of the two browsers.

import { mkdirSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { chromium } from 'playwright-core';
import { serve } from './server.mjs';
import { HANG_MS, Visit } from './visit.mjs';
import greeting from './greeting.mjs';
import live from './live.mjs';
import watching from './watching.mjs';
import playing from './playing.mjs';
import looking from './looking.mjs';
import training from './training.mjs';
import keeping from './keeping.mjs';
import textChecks from './text.mjs';
import trouble from './trouble.mjs';
import native from './native.mjs';
import own from './own.mjs';
import measures from './measures.mjs';

const ARGUMENTS = [
  '--no-sandbox',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];
const BROWSERS = {
  // A canvas takes a WebGPU picture only where all that shows it is on Vulkan, too.
  'with WebGPU': [
    '--enable-unsafe-webgpu',
    '--use-webgpu-adapter=swiftshader',
    '--enable-features=Vulkan',
    '--use-vulkan=swiftshader',
    '--use-angle=swiftshader',
  ],
  'without WebGPU': [],
};

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { own: { type: 'boolean' }, measure: { type: 'boolean' }, slow: { type: 'boolean' }, program: { type: 'string' }, shots: { type: 'string' } },
});
const [dist, ...rest] = positionals;
const words = rest.join(' ');
if (values.shots) mkdirSync(values.shots, { recursive: true });

/** Runs a check in a visit of its own; what it measured, as text. */
async function runCheck({ run }, browser, gpu) {
  const site = await serve(dist);
  const visit = new Visit(browser, site, { gpu, program: values.program, shots: values.shots });
  let timer;
  const late = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Error('it hangs')), 3 * HANG_MS);
  });
  try {
    const measured = await Promise.race([run(visit), visit.broken, late]);
    visit.assertNoComplaints();
    return measured ?? '';
  } catch (error) {
    throw new Error([error.message.split('\n')[0], ...visit.complaints].join('\n        '));
  } finally {
    clearTimeout(timer);
    await visit.end();
    site.close();
  }
}

/** Runs a check and prints its line, which begins with `failure` if it fails; whether it holds. */
async function runAndPrint(one, browser, gpu, failure) {
  const start = performance.now();
  const time = () => `${gpu ? 'GPU' : '2D '} ${((performance.now() - start) / 1000).toFixed(1).padStart(6)} s`;
  try {
    const measured = await runCheck(one, browser, gpu);
    console.log(`ok     ${time()}  ${one.name}${measured && `: ${measured}`}`);
    return true;
  } catch (error) {
    console.log(`${failure} ${time()}  ${one.name}\n        ${error.message}`);
    return false;
  }
}

let [numFailed, numRetried, numDone] = [0, 0, 0];
const checks = values.measure ? measures : values.own ? own : [...greeting, ...live, ...watching, ...playing, ...looking, ...training, ...keeping, ...textChecks, ...trouble, ...(values.program ? native : [])];
async function runIn(mode, flags) {
  const gpu = mode === 'with WebGPU';
  const isFast = (slow) => !(gpu && slow) || values.slow || words;
  const isFor = (webgpu) => (gpu ? webgpu !== undefined : webgpu !== 'only');
  const wanted = checks.filter(({ name, webgpu, slow }) => `${name} ${mode}`.includes(words) && isFor(webgpu) && isFast(slow));
  if (wanted.length === 0) return;
  const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
  const browser = await chromium.launch({ executablePath, args: [...ARGUMENTS, ...flags] });
  console.log(`Chromium ${browser.version()}, ${mode}`);
  for (const one of wanted) {
    const first = await runAndPrint(one, browser, gpu, 'again ');
    const holds = first || (await runAndPrint(one, browser, gpu, 'FAILED'));
    numFailed += holds ? 0 : 1;
    numRetried += holds && !first ? 1 : 0;
    numDone += 1;
  }
  await browser.close();
}
// Most of a check is waiting for the page, so the two browsers run beside each other; measurements run alone.
if (values.measure) for (const [mode, flags] of Object.entries(BROWSERS)) await runIn(mode, flags);
else await Promise.all(Object.entries(BROWSERS).map(([mode, flags]) => runIn(mode, flags)));
if (numRetried > 0) console.log(`${numRetried} of ${numDone} checks held only at the second try`);
if (numDone === 0) console.log(`FAILED: no check has "${words}" in its name`);
process.exitCode = numFailed > 0 || numDone === 0 ? 1 : 0;
