// A run that is watched: its facts, its curves and its state, from a server that the checks play.

import { assertStill, recordShifts } from './greeting.mjs';
import { findViolations } from './looking.mjs';
import { saveAgent, settingsOf } from './keeping.mjs';
import { shortTraining } from './training.mjs';
import { assertUnchanged, eventually, ok, text, trainAndPause, until, untilMessage, untilStored } from './visit.mjs';

/** A run of catch, as /run/about.json has it. */
const CATCH_RUN = {
  run: 'catch-1', game: 'catch', iterations: 60, references: [{ player: 'random', score: -0.6 }, { player: 'optimum', score: 1 }],
  trained_with: { device: { name: 'cpu', description: '2 threads' }, engine: 'native rollouts, native updates' },
};

/** A run of a language model. */
const SORT_RUN = { ...CATCH_RUN, run: 'sort-1', game: '', task: 'sort', references: [] };

/** A record of an iteration. */
const record = (iteration, more) => ({
  iteration, is_sft: false, score: iteration / 100, rewards: { exact: iteration / 100 }, loss: 0.01, entropy: 1 / iteration, approx_kl: 0, clip_fraction: 0,
  zero_variance_fraction: 0, steps_per_second: 1000, seconds: { total: 0.1, phases: {} }, memory: {}, completion_length: 5, ...more,
});

const records = (count, more) => Array.from({ length: count }, (_, i) => record(i + 1, more));

/** Completions of an iteration, as the file has them: of a prompt, with these rewards. */
const completions = (iteration, rewards) => rewards.map((reward) => ({
  iteration, group: 0, prompt: '3+4=', completion: '7', logprobs: [-0.1, -0.1], score: reward, reward, rewards: { exact: reward ?? 0 }, advantage: 0, is_truncated: false,
  problem: reward === null ? 'no answer within 10 s' : undefined,
}));

/** Opens the page of a run, `{ about, records, completions(iteration) }`, which the check may replace; without
    `about` its directory is gone. The stream of its records ends at once, and the browser asks for another after
    `retry` milliseconds, which starts again unless the run `continues`. */
async function openRun(visit, run, options = {}) {
  const context = options.context ?? (await visit.context(options.options));
  const gone = { status: 404, body: 'the run has no config.toml.\n' };
  await context.route('**/run/about.json', (route) => route.fulfill(run.about ? { json: run.about } : gone));
  await context.route('**/run/files/config.toml', (route) => route.fulfill({ body: 'iterations = 60\n'.repeat(40) }));
  const lines = (url) => (run.completions?.(new URL(url).searchParams.get('iteration')) ?? []).map((one) => JSON.stringify(one)).join('\n');
  await context.route('**/run/completions.jsonl*', (route) => route.fulfill({ body: lines(route.request().url()) }));
  const events = () => [`retry: ${run.retry ?? 200}`, ...(run.continues ? [] : ['event: start\ndata: {}']), ...run.records.map((one) => `event: record\ndata: ${JSON.stringify(one)}`),
    ...(run.checkpoints ?? []).map(([tag, iteration]) => `event: checkpoint\ndata: ${JSON.stringify({ which: 'newest', tag, iteration })}`), ''].join('\n\n');
  await context.route('**/run/events', (route) => route.fulfill({ contentType: 'text/event-stream', body: events() }));
  return visit.open({ folded: true, ...options, context });
}

/** Opens the page of a run with a stream that stays open, as the program's does: no loss of the connection replaces
    what the page says. */
async function openSteadyRun(visit, about, all, checkpoints = []) {
  const context = await visit.context();
  await context.addInitScript(([records, checkpoints]) => {
    window.EventSource = class extends EventTarget {
      constructor() {
        super();
        const send = (type, one) => this.dispatchEvent(new MessageEvent(type, { data: JSON.stringify(one) }));
        setTimeout(() => {
          send('open');
          for (const one of records) send('record', one);
          for (const one of checkpoints) send('checkpoint', one);
        });
      }
    };
  }, [all, checkpoints]);
  return openRun(visit, { about, records: [] }, { context });
}

export default [
  {
    name: 'nothing moves by itself and axe-core finds nothing where a run of a game or of text is watched',
    async run(visit) {
      const shifts = [];
      for (const task of [undefined, 'sort']) {
        // Once: a stream that begins while the context is closed would miss its route.
        const run = { about: task ? SORT_RUN : { ...CATCH_RUN, game: 'fruit' }, records: records(12), retry: 600_000 };
        const page = await openRun(visit, run, { init: recordShifts });
        await until(page, task ? '#text-state' : '#state-here', /^Iteration 12 of 60/);
        shifts.push(await assertStill(page, task ?? 'a game'));
        const wrong = await findViolations(page, 'a watched run');
        ok(wrong.length === 0, wrong.join('; '));
        await visit.screenshot(page, `live-${task ?? 'game'}`);
        await page.context().close();
      }
      return shifts.join(', ');
    },
  },
  {
    name: 'a watched run has its game on the stage before its first policy, and its device is shown',
    async run(visit) {
      const page = await openRun(visit, { about: CATCH_RUN, records: records(5) });
      await until(page, '#rules', /ball falls/);
      ok(await page.locator('#game input[value=catch]').isChecked(), 'another game is picked');
      await until(page, '#stat-training', /^cpu \(2 threads\), native rollouts, native updates$/);
    },
  },
  {
    name: 'a deleted run is reported, and another in its place shows its own facts',
    async run(visit) {
      const run = { about: CATCH_RUN, records: records(4) };
      const page = await openRun(visit, run);
      await until(page, '#state', /^Iteration 4 of 60/);
      visit.allow(/404/);
      Object.assign(run, { about: undefined, records: [] });
      await until(page, '#state', /^The run has been deleted$/);
      await until(page, '#live', /^catch-1: deleted$/);
      Object.assign(run, { about: { ...CATCH_RUN, run: 'catch-2', iterations: 3 }, records: records(3) });
      await until(page, '#state', /^Iteration 3 of 3$/);
      // The stream of this check ends again and again.
      await until(page, '#live', /^catch-2: (finished|no connection, trying again)$/);
      const late = await openRun(visit, { records: [] });
      await untilMessage(late, /The run that this page watches has been deleted\./);
    },
  },
  {
    name: 'a run of text in the place of one of a game is shown, and the other way round, unless the tab trains',
    async run(visit) {
      const run = { about: CATCH_RUN, records: records(4) };
      const page = await openRun(visit, run);
      await until(page, '#state', /^Iteration 4 of 60/);
      run.about = SORT_RUN;
      await until(page, '#text-state', /^Iteration 4 of 60/);
      // The address still names the game that the page was opened with.
      await page.locator('#text').waitFor();
      ok(await page.locator('#game input[value=sort]').isChecked(), 'text is not picked');
      ok((await text(page, '#text-source-live')) === 'sort-1', `the choice is called ${await text(page, '#text-source-live')}`);
      run.about = { ...CATCH_RUN, run: 'catch-2' };
      await page.locator('#stage').waitFor();
      await until(page, '#state-here', /^Iteration 4 of 60/);
      ok(await page.locator('#game input[value=catch]').isChecked() && await page.locator('#text').isHidden(), 'text stays');
      ok((await text(page, '#source-live')) === 'catch-2', `the choice is called ${await text(page, '#source-live')}`);
      await page.click('#source label:has([value=here])');
      await page.click('#train-here');
      await until(page, '#state-here', /^Training/);
      run.about = SORT_RUN;
      await untilMessage(page, /^Another run, sort-1, has taken the place of catch-2\. Reload the page to watch it\./);
      await until(page, '#live', /: replaced by another run$/);
    },
  },
  {
    name: 'a training that was left in the browser does not take the place of a watched run',
    async run(visit) {
      const context = await visit.context();
      const before = await visit.open({ hash: shortTraining(visit, 10_000), context });
      await trainAndPause(before);
      await untilStored(before, 'run', (run) => run?.paused);
      await before.close();
      const page = await openRun(visit, { about: CATCH_RUN, records: records(5) }, { context });
      await page.waitForFunction(() => document.querySelector('#pause').textContent === 'Resume');
      await until(page, '#state', /^Iteration 5 of 60/);
      ok(await page.locator('#source [value=live]').isChecked(), 'the training in this tab is shown');
    },
  },
  {
    name: 'a run that is deleted before its first iteration is reported',
    async run(visit) {
      const page = await openSteadyRun(visit, CATCH_RUN, []);
      await until(page, '#live', /^catch-1: waiting for the first iteration$/);
      visit.allow(/404/);
      await page.context().route('**/run/about.json', (route) => route.fulfill({ status: 404, body: 'the run has no config.toml.\n' }));
      await until(page, '#live', /^catch-1: deleted$/);
      await until(page, '#state', /^The run has been deleted$/);
    },
  },
  {
    name: 'the page says so if it cannot play a watched run, and if a run ends by its score',
    async run(visit) {
      // It asks for no policy of a game that it has not: there is none.
      const page = await openSteadyRun(visit, { ...CATCH_RUN, game: 'host' }, records(60), [{ which: 'newest', tag: 'a', iteration: 60 }]);
      await until(page, '#state-here', /^Iteration 60 of 60\. This page cannot play what the run learns; the game shown here is another\.$/);
      await until(page, '#live', /^catch-1: finished$/);
      ok((await page.title()) === 'catch-1: finished – Grove', `the tab is called ${await page.title()}`);
      const all = records(25, { evaluation: { mean_score: 0.5 } });
      const early = await openSteadyRun(visit, { ...CATCH_RUN, settings: { stop: { score: 0.5 } } }, all);
      await until(early, '#live', /^catch-1: finished$/);
      const endless = await openSteadyRun(visit, { ...CATCH_RUN, settings: { stop: { score: null } } }, all);
      await until(endless, '#live', /^catch-1: (waiting for the next iteration|no new iterations)$/);
    },
  },
  {
    name: 'a run is not watched in the background, and is up to date afterwards',
    async run(visit) {
      const run = { about: CATCH_RUN, records: records(10), retry: 600_000 };
      const page = await openRun(visit, run);
      await until(page, '#state', /^Iteration 10 of 60$/);
      const show = (shown) => page.evaluate((hidden) => {
        Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
        document.dispatchEvent(new Event('visibilitychange'));
      }, !shown);
      await show(false);
      await until(page, '#live', /^catch-1: not watched in the background$/);
      run.records = records(20);
      await show(true);
      await until(page, '#state', /^Iteration 20 of 60$/);
    },
  },
  {
    name: 'a watched run that is resumed with a later end shows that end',
    async run(visit) {
      const run = { about: CATCH_RUN, records: records(60) };
      const page = await openRun(visit, run);
      await until(page, '#state', /^Iteration 60 of 60$/);
      Object.assign(run, { about: { ...CATCH_RUN, iterations: 90 }, records: records(70), continues: true });
      await until(page, '#state', /^Iteration 70 of 90$/);
    },
  },
  {
    name: 'a chart of a thousand iterations gives the value of every record',
    async run(visit) {
      const evaluation = { mean_score: 0.25 };
      // Means of the same value, thinned, may differ in the last bit.
      const all = records(1000, { clip_fraction: 0.1 }).map((one) => (one.iteration % 100 === 0 ? { ...one, evaluation } : one));
      const page = await openRun(visit, { about: { ...CATCH_RUN, iterations: 1000 }, records: all });
      await until(page, 'figure.score output', /^10\.00, greedy 0\.25$/);
      await until(page, 'figure.clip_fraction output', /^0\.100$/);
      await page.waitForFunction(() => /over the iterations 1 to 1000: now 10\.00/.test(document.querySelector('figure.score canvas').ariaLabel));
      await page.locator('figure.score canvas').focus();
      for (const x of [999, 998, 997]) {
        await page.keyboard.press('ArrowLeft');
        await until(page, 'figure.score output', new RegExp(`^${x}: ${(x / 100).toFixed(2)}$`));
      }
    },
  },
  {
    name: 'the newest score and the names of the games are not cut off at any width',
    async run(visit) {
      const evaluation = { mean_score: -12.34 };
      const page = await openRun(visit, { about: CATCH_RUN, records: records(60, { score: -12.34, evaluation }) });
      await until(page, 'figure.score output', /^−12\.34, greedy −12\.34$/);
      for (const width of [320, 360, 390, 768, 1024, 1280, 1440, 1920]) {
        await page.setViewportSize({ width, height: 900 });
        const cut = await page.evaluate(() => {
          const inside = (one, box) => one.left >= box.left - 1 && one.right <= box.right + 1 && one.bottom <= box.bottom + 2;
          const [value, caption] = ['output', 'figcaption'].map((name) => document.querySelector(`figure.score ${name}`).getBoundingClientRect());
          const names = [...document.querySelectorAll('#game span')].filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent);
          return inside(value, caption) ? names : ['the score', ...names];
        });
        await visit.screenshot(page, `score-${width}`);
        ok(cut.length === 0, `at ${width} cut off are ${cut}`);
      }
    },
  },
  {
    name: 'the numbers on the charts grow with the text of the page',
    async run(visit) {
      const init = () => {
        new MutationObserver((_, observer) => {
          observer.disconnect();
          document.documentElement.style.fontSize = '32px';
        }).observe(document, { childList: true });
        window.fonts = new Set();
        const { fillText } = CanvasRenderingContext2D.prototype;
        CanvasRenderingContext2D.prototype.fillText = function (...given) {
          window.fonts.add(this.font);
          fillText.apply(this, given);
        };
      };
      const page = await openRun(visit, { about: CATCH_RUN, records: records(60), retry: 600_000 }, { init });
      await until(page, 'figure.score output', /./);
      const fonts = await page.evaluate(() => [...window.fonts]);
      ok(fonts.some((font) => font.startsWith('22px')) && !fonts.some((font) => font.startsWith('11px')), `they are of ${fonts}`);
      await visit.screenshot(page, 'large-text');
    },
  },
  {
    name: 'completions with several rewards, and rewards of a large scale, fit every width',
    async run(visit) {
      const rewards = { correctness: 0.25, formatting: 0.25, reasoning_length: 0.25, language: 0.25 };
      const answer = 'The answer is 42 because 6 * 7 = 42';
      const list = completions(5, [1, 0.5]).map((one) => ({ ...one, completion: answer, logprobs: [...answer].map(() => -0.5), rewards }));
      const evaluation = { mean_score: -1_000_000, pass_at_1: 0 };
      const run = { about: SORT_RUN, records: records(5, { score: -1_000_000, rewards, evaluation }), retry: 3_600_000, completions: () => list };
      const page = await openRun(visit, run);
      await until(page, '#filter output', /^2 of 2 of iteration 5$/);
      await until(page, '#text-charts', /−1000000\.00, greedy −1000000\.00/);
      for (const width of [360, 768, 1280, 1920]) {
        await page.setViewportSize({ width, height: 900 });
        await page.locator('#completions').scrollIntoViewIfNeeded();
        const [column, over] = await page.evaluate(() => {
          const { scrollWidth, clientWidth } = document.documentElement;
          return [document.querySelector('#completions tbody td').getBoundingClientRect().width, scrollWidth - clientWidth];
        });
        await visit.screenshot(page, `rewards-${width}`);
        ok(column >= 100, `at ${width} the completions have ${column} pixels`);
        ok(over <= 0, `at ${width} the page is ${over} pixels too wide`);
      }
    },
  },
  {
    name: 'values that change all the time do not interrupt a screen reader',
    async run(visit) {
      const page = await openRun(visit, { about: CATCH_RUN, records: records(60) });
      await until(page, '#rivals', /./);
      const loud = await page.locator('figure output:not([aria-live=off]), #rivals output:not([aria-live=off])').count();
      ok(loud === 0, `${loud} values are live regions`);
    },
  },
  {
    name: 'a watched run that imitates is described as such, and its first record is drawn',
    async run(visit) {
      const run = { about: { ...CATCH_RUN, settings: { data: { path: 'demo' } } }, records: records(1) };
      const page = await openRun(visit, run);
      await until(page, 'figure.loss b', /^Negative log-likelihood of the moves/);
      ok(await page.locator('#lab .grpo').isHidden() && await page.locator('#lab .imitation').isVisible(), 'it is described as GRPO');
      ok(await page.locator('figure.approx_kl').isHidden(), 'it has a KL');
      await page.locator('figure.entropy').scrollIntoViewIfNeeded();
      await eventually('a mark', () => visit.describePicture(page, 'figure.entropy canvas'), ({ colours }) => colours > 5);
      await visit.screenshot(page, 'imitating');
      const other = await openRun(visit, { about: SORT_RUN, records: records(4, { is_sft: true }) });
      await until(other, '#text-state', /^Iteration 4 of 60: SFT, imitating solutions$/);
      ok(/SFT .* imitates solutions/s.test(await text(other, '#text-about-live')), 'SFT is not explained');
    },
  },
  {
    name: 'an incomplete record of a watched run is left out, and a run of a user\'s own task is named as such',
    async run(visit) {
      const all = [...records(5), { iteration: 6 }, record(7)];
      const page = await openRun(visit, { about: { ...SORT_RUN, task: 'data' }, records: all });
      await until(page, '#text-state', /^Iteration 7 of 60$/);
      await until(page, '#live', /^sort-1: (waiting for the next iteration|no new iterations|no connection)/);
      ok((await text(page, '#text-title')) === 'A language model learns a task of your own', `it is called ${await text(page, '#text-title')}`);
      ok(/Text: own task/.test(await text(page, '#game')), 'its tab has another name');
      const broken = await openSteadyRun(visit, CATCH_RUN, [record(1), { iteration: 2 }]);
      await untilMessage(broken, /Iteration 2 is left out of the curves: its record in metrics\.jsonl is incomplete/);
      await until(broken, '#state', /^Iteration 1 of 60/);
    },
  },
  {
    name: 'completions that are missing from the newest list are shown on request, and ticks and filters know the highest score',
    async run(visit) {
      const whole = completions(5, [2, 2, 1, 0, null]);
      const about = { ...SORT_RUN, trained_with: { ...SORT_RUN.trained_with, highest_score: 2 } };
      const retry = 3_600_000; // another stream would begin with an empty list
      const page = await openRun(visit, { about, records: records(5), retry, completions: (iteration) => (iteration ? whole : whole.slice(1)) });
      await until(page, '#filter output', /^4 of 4 of iteration 5$/);
      await until(page, '#completions .prompt', /iteration 5, 1 of 4 right$/);
      await page.fill('#filter [name=iteration]', '5');
      await until(page, '#filter output', /^5 of 5 that fit, of 5$/);
      await until(page, '#completions .prompt', /iteration 5, 2 of 5 right$/);
      // A completion without a reward is not one of 0.
      await page.fill('#filter [name=least]', '0');
      await until(page, '#filter output', /^4 of 4 that fit, of 5$/);
      await page.fill('#filter [name=least]', '');
      await page.fill('#filter [name=most]', '1');
      await until(page, '#filter output', /^2 of 2 that fit, of 5$/);
    },
  },
  {
    name: 'a policy of a watched run that plays beside another is renewed on its board, with its own mean',
    async run(visit) {
      const context = await visit.context();
      const other = await visit.open({ hash: '#game=catch' });
      const { bytes } = await saveAgent(other);
      const lazy = Buffer.from(bytes); // weights of 0: it goes to the left
      lazy.fill(0, 8 + Number(bytes.readBigUInt64LE(0)));
      let newest = { iteration: 20, body: lazy };
      await context.route('**/run/files/newest/*', (route) => {
        const body = /config/.test(route.request().url()) ? settingsOf(bytes) : newest.body;
        return route.fulfill({ headers: { 'grove-iteration': `${newest.iteration}` }, body });
      });
      const run = { about: CATCH_RUN, records: records(5), checkpoints: [['a', 20]] };
      const page = await openRun(visit, run, { context, hash: '#game=catch&speed=max' });
      await until(page, '#agent option:checked', /Run: newest \(20\)/);
      await page.selectOption('#agent', 'ready');
      await page.click('#beside summary');
      await page.check('#rivals input[value=newest]');
      const mean = async () => Number.parseFloat((await text(page, '#rivals li:has([value=newest]) output')).replace('−', '-'));
      await eventually('the mean of one that goes to the left', mean, (mean) => mean < 0);
      newest = { iteration: 40, body: bytes };
      run.checkpoints = [['b', 40]];
      await until(page, '#names', /Run: newest \(40\)/);
      await eventually('the mean of a good one', mean, (mean) => mean > 0.9);
    },
  },
  {
    name: 'of two policies of a watched run the one announced last stays, whichever arrives first',
    async run(visit) {
      const context = await visit.context();
      const other = await visit.open({ hash: '#game=catch' });
      const { bytes } = await saveAgent(other);
      const asked = [];
      let release;
      const late = new Promise((done) => { release = done; });
      await context.route('**/run/files/newest/*', async (route) => {
        const isConfig = /config/.test(route.request().url());
        const first = asked.filter((one) => one === isConfig).length === 0;
        asked.push(isConfig);
        if (first) await late;
        await route.fulfill({ headers: { 'grove-iteration': first ? '20' : '41' }, body: isConfig ? settingsOf(bytes) : bytes });
      });
      const run = { about: CATCH_RUN, records: records(5), checkpoints: [['a', 20], ['b', 40]] };
      const page = await openRun(visit, run, { context });
      await until(page, '#agent', /Run: newest \(41\)/);
      run.checkpoints.shift();
      const arrived = Promise.all(['config.toml', 'weights.safetensors'].map((name) => page.waitForResponse(`**/run/files/newest/${name}`)));
      release();
      await arrived;
      await assertUnchanged(page, '#agent', 'the older policy takes its place');
    },
  },
];
