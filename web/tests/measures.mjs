// Times of the page, measured and printed: they depend on the machine and what else it does, so they decide nothing.

import { measureRise } from './greeting.mjs';
import { trainToScore } from './training.mjs';
import { openText } from './text.mjs';
import { eventually, text } from './visit.mjs';

const NUM_TRIES = 5;

const formatTimes = (times) => times.map((time) => `${Math.round(time)} ms`).join(', ');

export default [
  {
    name: 'from the start of the page to the first picture of the trained agent',
    webgpu: 'too',
    async run(visit) {
      const times = [];
      for (let i = 0; i < NUM_TRIES; i += 1) {
        const page = await visit.open();
        times.push(await page.evaluate(() => performance.getEntriesByName('first-frame')[0].startTime));
        await page.context().close();
      }
      return formatTimes(times);
    },
  },
  {
    name: 'a picture for those who share the page, and from the click on Train to a rise of the curve',
    async run(visit) {
      const page = await visit.open({ hash: '#game=cartpole', folded: true, options: { viewport: { width: 1200, height: 630 } } });
      const rise = await measureRise(page);
      await eventually('a high score', () => text(page, '#state'), (state) => /greedy 500|^Finished/.test(state));
      await visit.screenshot(page, 'preview');
      return formatTimes([rise]);
    },
  },
  {
    name: 'a call into the module',
    webgpu: 'too',
    async run(visit) {
      const page = await visit.open();
      const times = await page.evaluate(async (tries) => {
        const { version } = await import('./watch.js');
        return Array.from({ length: tries }, () => {
          const start = performance.now();
          for (let call = 0; call < 1000; call += 1) version();
          return performance.now() - start; // milliseconds for a thousand, so microseconds for one
        });
      }, NUM_TRIES);
      return `${Math.min(...times).toFixed(1)} µs`;
    },
  },
  {
    name: 'catch from the start of the training to its score, and the long tasks of the main thread meanwhile',
    webgpu: 'too',
    async run(visit) {
      const start = performance.now();
      const { page, state } = await trainToScore(visit, '#game=catch');
      const seconds = (performance.now() - start) / 1000;
      const tasks = await page.evaluate(() => window.longTasks.map(({ duration }) => duration));
      return `${seconds.toFixed(0)} s, ${tasks.length} long tasks (${formatTimes(tasks)}): ${state}`;
    },
  },
  {
    name: 'sorting from the start of the training to its end',
    async run(visit) {
      const page = await openText(visit);
      const start = performance.now();
      await page.click('#text-start');
      const state = await eventually('the end', () => text(page, '#text-state'), (state) => /^(Finished|Stopped)/.test(state));
      return `${((performance.now() - start) / 1000).toFixed(0)} s: ${state}`;
    },
  },
];
