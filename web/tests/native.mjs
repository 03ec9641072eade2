// Together with the native program: policies go from one to the other, and a run is watched live.

import { execFile, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { ok, text, trainToEnd, until, untilChanged, untilMessage, untilStepped } from './visit.mjs';
import { loadAgents, saveAgent } from './keeping.mjs';
import { playAlong, saveGames } from './playing.mjs';
import { shortTraining } from './training.mjs';

const run = promisify(execFile);

/** A folder for runs, until the visit ends. */
function newRunFolder(visit) {
  const path = mkdtempSync(join(tmpdir(), 'grove-page-'));
  visit.cleaners.push(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** Starts the program; the address that it prints. */
async function startProgram(visit, all) {
  const child = spawn(visit.program, all, { stdio: ['ignore', 'ignore', 'pipe'] });
  const gone = new Promise((done) => child.once('exit', done));
  const stop = () => { child.kill('SIGKILL'); return gone; };
  visit.cleaners.unshift(stop);
  let said = '';
  const address = await new Promise((done, fail) => {
    child.stderr.on('data', (bytes) => {
      said += bytes;
      const found = /http:\/\/\S+:\d+\//.exec(said);
      if (found) done(found[0]);
    });
    gone.then(() => fail(new Error(`the program ended: ${said}`)));
  });
  return { address, stop };
}

export default [
  {
    name: 'the program also learns from the games of a person',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch' });
      await playAlong(page, 10);
      const { path } = await saveGames(page);
      const [games, moves] = (await text(page, '#mine-about')).match(/\d+/g).map(Number);
      const [shown, fit] = ['shown', 'fit'].map((name) => join(newRunFolder(visit), name));
      const imported = JSON.parse((await run(visit.program, ['import', path, '--out', shown, '--json'])).stdout);
      ok(imported.episodes === games && imported.steps === moves, `of ${games} games, ${moves} moves: ${JSON.stringify(imported)}`);
      const { stdout } = await run(visit.program, ['fit', shown, '--device', 'cpu', '--run-dir', fit, '--json']);
      const heldOut = JSON.parse(stdout).held_out;
      const count = heldOut.confusion.flat().reduce((a, b) => a + b);
      ok(count > 0 && count < moves / 2, `held out are ${JSON.stringify(heldOut)}`);
      return `an accuracy of ${heldOut.accuracy} on the held-out moves`;
    },
  },
  {
    name: 'a policy trained in the tab is evaluated by the program, with the score of the tab',
    webgpu: 'too',
    async run(visit) {
      const page = await visit.open({ hash: shortTraining(visit, 25) });
      await trainToEnd(page, /^Finished.*greedy/);
      const [, here] = /greedy ([−\d.]+)/.exec(await text(page, '#state'));
      const { path } = await saveAgent(page);
      const { stdout } = await run(visit.program, ['eval', path, '--json']);
      const found = JSON.parse(stdout);
      const score = found.mean_score ?? found.score;
      ok(Math.abs(score - Number(here.replace('−', '-'))) < 0.1, `${score} by the program, ${here} in the tab`);
      return `${score} by the program, ${here} in the tab`;
    },
  },
  {
    name: 'a policy trained by the program plays in the tab',
    async run(visit) {
      const dir = join(newRunFolder(visit), 'run');
      await run(visit.program, ['train', 'catch', '--device', 'cpu', '--iterations', '3', '--set', 'hidden=[24]', '--run-dir', dir]);
      const page = await visit.open();
      const best = ['config.toml', 'weights.safetensors'].map((name) => join(dir, 'best', name));
      await loadAgents(page, best);
      await untilMessage(page, /Loaded config\.toml and weights\.safetensors/);
      ok((await text(page, '#agent-about')).startsWith('24 units'), 'another policy is loaded');
      await untilStepped(page);
      const other = join(newRunFolder(visit), 'decoder');
      const sizes = ['kind=decoder', 'num_layers=1', 'hidden_size=32', 'num_heads=2', 'num_kv_heads=1', 'num_groups=16'];
      await run(visit.program, ['train', 'catch', '--device', 'cpu', '--iterations', '1', '--run-dir', other, ...sizes.flatMap((set) => ['--set', set])]);
      await loadAgents(page, ['config.toml', 'weights.safetensors'].map((name) => join(other, 'best', name)));
      await until(page, '#agent-about', /^Transformer: 1 layer of 32 units, sees 32 steps/);
      await untilStepped(page);
    },
  },
  {
    name: 'a run is watched live, also when its server stops and returns',
    async run(visit) {
      const dir = join(newRunFolder(visit), 'live');
      const all = ['train', 'catch', '--device', 'cpu', '--iterations', '1000000', '--set', 'eval_every=5', '--set', 'save_every=5', '--set', 'eval_episodes=100', '--run-dir', dir, '--watch', '--port', '0'];
      const { address, stop } = await startProgram(visit, all);
      const page = await visit.open({ address });
      await until(page, '#live', /^live: training/);
      await until(page, '#state', /Iteration [1-9]\d* of 1000000/);
      // The run's own settings, not those of a form.
      await until(page, '#run-toml', /iterations = 1000000/);
      ok(await page.locator('#settings').isHidden(), 'a form with other settings is shown');
      await until(page, '#agent option:checked', /Run: newest \(\d+\)/);
      const before = await text(page, '#agent option:checked');
      await untilChanged(page, '#agent option:checked', before);
      ok(await page.locator('#game input[value=catch]').isChecked(), 'another game is on the stage');
      await until(page, 'figure.score output', /greedy/);
      await page.waitForFunction(() => /over the iterations 1 to \d{2}/.test(document.querySelector('figure.entropy canvas').ariaLabel));
      await untilStepped(page);
      await visit.screenshot(page, 'live', true);

      visit.allow(/ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE/);
      await stop();
      await untilMessage(page, /has stopped or cannot be reached/);
      await until(page, '#live', /no connection, trying again/);
      await visit.screenshot(page, 'stopped-server');
      await untilStepped(page);
      await page.selectOption('#agent', 'best');
      await untilStepped(page);

      // The program comes back at the same address.
      await startProgram(visit, ['watch', dir, '--port', new URL(address).port]);
      await untilMessage(page, /Reconnected/);
      await until(page, '#live', /^live: (waiting for the next iteration|no new iterations|finished)/);
    },
  },
  {
    name: 'beside a watched run the tab trains its own',
    async run(visit) {
      const dir = join(newRunFolder(visit), 'beside');
      await run(visit.program, ['train', 'catch', '--device', 'cpu', '--iterations', '10', '--run-dir', dir]);
      const { address } = await startProgram(visit, ['watch', dir, '--port', '0']);
      const page = await visit.open({ address, hash: shortTraining(visit) });
      await until(page, '#live', /finished/);
      await page.locator('#source input[value=here]').check({ force: true });
      await trainToEnd(page, /^Finished catch: iteration 12/);
      await page.locator('#source input[value=live]').check({ force: true });
      await until(page, '#state', /^Iteration 10 of 10/);
    },
  },
  {
    name: 'a run of a language model is watched: its curves, and its completions with filters',
    async run(visit) {
      const dir = join(newRunFolder(visit), 'text');
      const small = ['hidden_size=32', 'num_layers=1', 'num_heads=2', 'num_kv_heads=1', 'fit.iterations=5', 'num_prompts=6', 'sort.length=4', 'eval_every=5', 'eval_episodes=32'];
      await run(visit.program, ['train', 'sort', '--model', 'tiny', '--iterations', '30', '--run-dir', dir, ...small.flatMap((set) => ['--set', set])]);
      const { address } = await startProgram(visit, ['watch', dir, '--port', '0']);
      const page = await visit.open({ address });
      await until(page, '#live', /^text: finished/);
      await until(page, '#text-state', /^Iteration 30 of 30/);
      ok(await page.locator('#game input[value=sort]').isChecked(), 'a game is on the page');
      await until(page, '#text-toml', /length = 4/);
      await until(page, '#filter output', /^48 of 48 of iteration 30$/);
      await until(page, '#text-charts output', /\d/);
      await visit.screenshot(page, 'text-live', true);
      await page.fill('#filter [name=iteration]', '7');
      await until(page, '#completions .prompt', /iteration 7,/);
      await page.click('#filter button[type=reset]');
      await page.fill('#filter [name=most]', '0.4');
      await until(page, '#filter output', /that fit/);
      await page.locator('#text-source input[value=here]').check({ force: true });
      ok(await page.locator('#ask').isVisible(), 'nothing can be trained in the tab');
    },
  },
];
