// Playing along: a person beside the agent, walls of games, and the scores to compare with.

import { loadAgents, saveAgent, settingsOf } from './keeping.mjs';
import { assertUnchanged, download, eventually, ok, pickGame, readPixels, restart, setSlider, text, trainToEnd, until, untilChanged, untilMessage, untilStepped, untilStored, waitFrames } from './visit.mjs';

/** Plays games of catch beside the agent, each from a seed of its own, and does what the agent would do; a
    game that was left before, after some moves, may be among those that are kept. */
export async function playAlong(page, games) {
  await page.click('#takeover');
  await until(page, '#takeover', /Leave/);
  // Counted down, and some moves made: all of them, in a browser that is slow to answer.
  await page.waitForFunction(() => document.querySelector('#count').hidden);
  await until(page, '#time', /step [1-9]/);
  const kept = async () => Number(/^\d+/.exec(await text(page, '#mine-about'))?.[0] ?? 0);
  for (let seed = 1; seed <= games; seed += 1) {
    await restart(page, seed);
    const before = await kept();
    // At most one click per step: a busy browser may play a step on its own.
    for (let time = await text(page, '#time'); !/step 9 of 9/.test(time); time = await text(page, '#time')) {
      const chosen = await text(page, '#probabilities .chosen span');
      if (chosen !== 'stay') await page.keyboard.press(chosen === 'left' ? 'ArrowLeft' : 'KeyD');
      await page.click('#single');
      await untilChanged(page, '#time', time);
    }
    await page.waitForFunction((before) => parseInt(document.querySelector('#mine-about').textContent, 10) > before, before);
  }
}

/** Saves the games of the person. */
export const saveGames = (page) => download(page, '#save-games');

export default [
  {
    name: 'the games of a person are kept, saved as a file and imitated, and the pupil plays beside its teacher',
    async run(visit) {
      const context = await visit.context();
      const first = await visit.open({ hash: '#game=catch', context });
      ok(await first.locator('#mine').isHidden(), 'games are there before any was played');
      await playAlong(first, 12);
      const { bytes: played } = await saveGames(first);
      await untilStored(first, 'games ', (kept) => kept?.bytes === played.length);
      await first.close();

      const page = await visit.open({ hash: '#game=catch', context });
      await until(page, '#mine-about', /^\d+ games recorded \(\d+ moves\)/);
      const { name, bytes } = await saveGames(page);
      ok(name === 'catch-games.safetensors', `the file is called ${name}`);
      ok(bytes.toString('latin1', 0, 200).includes('grove_games'), 'the file does not say what it is');
      await page.click('#imitate');
      await untilMessage(page, /Trained on your games\. Now play against it/);
      await until(page, '#state', /^Finished catch: .*greedy/);
      const greedy = Number(/greedy ([−\d.]+)/.exec(await text(page, '#state'))[1].replace('−', '-'));
      // Random moves score -0.6.
      ok(greedy > 0, `the pupil scores ${greedy}`);
      await until(page, '#takeover', /Leave/);
      ok(/^Trained here/.test(await text(page, '#agent option:checked')), 'the pupil is not on the stage');
      ok(/imitates your moves/.test(await text(page, '#learn-title')), 'the title does not say what it does');
      ok((await text(page, '#train-here')) === 'Train an agent', 'the button that trains by rewards offers to imitate again');
      const shown = await page.locator('#lab :is(.imitation, .grpo, .approx_kl, .clip_fraction)').evaluateAll((all) => all.filter((one) => one.checkVisibility()).map(({ className }) => className));
      ok(shown.join() === 'about imitation', `of imitation it shows ${shown}`);
      await visit.screenshot(page, 'imitated', true);
      await page.keyboard.press('Escape');
      // Games of another game are another matter.
      await pickGame(page, 'fruit');
      await until(page, '#references', /7\.75/);
      ok(await page.locator('#mine').isHidden(), 'games of catch are offered to fruit');
      return `greedy ${greedy} after ${bytes.length} bytes of games`;
    },
  },
  {
    name: 'saved games are loaded again, once, whichever game is on the stage',
    async run(visit) {
      const first = await visit.open({ hash: '#game=catch' });
      await playAlong(first, 2);
      const { bytes } = await saveGames(first);
      const page = await visit.open({ hash: '#game=catch' });
      const file = { name: 'mine.safetensors', mimeType: 'application/octet-stream', buffer: bytes };
      await page.setInputFiles('#files', file);
      await untilMessage(page, /^Loaded mine\.safetensors: \d+ recorded games? of Catch\./);
      const about = await text(page, '#mine-about');
      ok(about === (await text(first, '#mine-about')), `it has ${about}`);
      await page.setInputFiles('#files', file);
      await untilMessage(page, /^Loaded mine/);
      ok((await text(page, '#mine-about')) === about, 'the same games are there twice');
      const other = await visit.open();
      await other.setInputFiles('#files', file);
      await untilMessage(other, /^Loaded mine/);
      ok(await other.locator('#mine').isHidden(), 'games of catch are offered beside fruit');
      await pickGame(other, 'catch');
      await until(other, '#mine-about', /recorded/);
      ok((await text(other, '#mine-about')) === about, 'the games are not kept');
    },
  },
  {
    name: 'games that are played in two tabs are kept together',
    async run(visit) {
      const context = await visit.context();
      const pages = [await visit.open({ hash: '#game=catch', context }), await visit.open({ hash: '#game=catch', context })];
      const played = [];
      for (const page of pages) {
        await page.bringToFront();
        await playAlong(page, 1);
        played.push(parseInt(await text(page, '#mine-about'), 10));
        await page.keyboard.press('Escape');
      }
      const third = await visit.open({ hash: '#game=catch', context });
      const all = played[0] + played[1];
      await until(third, '#mine-about', new RegExp(`^${all} games recorded`));
    },
  },
  {
    name: 'an agent that arrives after another game was picked stays off the stage',
    async run(visit) {
      const page = await visit.open();
      let release;
      const held = new Promise((done) => { release = done; });
      await page.route('**/policies/cartpole.safetensors', async (route) => { await held; await route.continue(); });
      const arrives = page.waitForResponse('**/policies/cartpole.safetensors');
      await pickGame(page, 'cartpole');
      await pickGame(page, 'catch');
      await until(page, '#settings-of', /Catch$/);
      release();
      await (await arrives).finished();
      for (let i = 0; i < 3; i += 1) await untilStepped(page);
      ok(/Catch$/.test(await text(page, '#settings-of')), `the stage shows ${await text(page, '#settings-of')}`);
      ok(await page.locator('#game input[value=catch]').isChecked(), 'another game is ticked');
    },
  },
  {
    name: 'a wall of up to 1,024 games',
    webgpu: 'too',
    slow: true,
    async run(visit) {
      const page = await visit.open();
      const one = await visit.describePicture(page);
      const size = () => page.locator('#stage').evaluate((stage) => [stage.offsetWidth, stage.offsetHeight].join());
      const outer = await size();
      for (const [place, games] of [[4, 16], [10, 1024]]) {
        await setSlider(page, '#wall', place);
        ok((await size()) === outer, `the stage is ${await size()} with ${games} games, ${outer} with one`);
        ok((await text(page, '#wall-out')) === `${games}`, `not ${games} games`);
        await until(page, '#stat-steps', /[1-9][\d.]*[kM]? steps a second/);
        await untilStepped(page);
        await visit.screenshot(page, `wall-${games}`);
        await eventually('another picture', () => visit.describePicture(page), ({ hash }) => hash !== one.hash);
      }
      // Each is shaded by its last score, once it has one.
      await setSlider(page, '#speed', 8);
      await until(page, '#episodes', /\d,\d{3}/);
      await eventually('boards of many shades', async () => new Set(await readPixels(page, '#shade')).size, (shades) => shades > 8);
      await until(page, '#shade-how', /from [−\d]+ \(orange\) to \d+ \(green\)/);
      await visit.screenshot(page, 'wall-shaded');
      const cut = await page.locator('main *').evaluateAll((all) => all.filter((one) => one.checkVisibility() && one.getBoundingClientRect().right > one.closest('main').getBoundingClientRect().right + 1).map(({ id, tagName }) => `${tagName} ${id}`));
      ok(cut.length === 0, `beyond the right edge are ${cut}`);
      const rate = await text(page, '#stat-steps');
      await setSlider(page, '#wall', 0);
      await untilStepped(page);
      return rate;
    },
  },
  {
    name: 'Shift takes over, keys steer, both scores are there',
    async run(visit) {
      const page = await visit.open();
      await page.keyboard.down('Shift');
      await until(page, '#takeover', /Leave/);
      ok(await page.locator('#duel').isVisible(), 'no scores side by side');
      await until(page, '#time', /step [1-9]\d? /);
      const green = await page.evaluate(() => [...document.querySelectorAll('button')].filter((one) => one.checkVisibility() && getComputedStyle(one).backgroundColor === getComputedStyle(document.querySelector('#takeover')).backgroundColor).map(({ id }) => id));
      ok(green.join() === 'takeover', `green are ${green}`);
      // To the wall at the right: then half of the picture is another.
      await page.keyboard.down('ArrowRight');
      await until(page, '#time', /step ([2-9]\d|100) /);
      await visit.screenshot(page, 'takeover');
      await page.keyboard.up('ArrowRight');
      await page.keyboard.down('KeyA');
      await setSlider(page, '#speed', 4);
      await until(page, '#duel-last', /(You win|The agent wins|A draw), .* to .*Games won/);
      await page.keyboard.up('KeyA');
      const last = await text(page, '#duel-last');
      ok(/The agent wins/.test(last), `who only goes left wins: ${last}`);
      await page.keyboard.up('Shift');
      await until(page, '#takeover', /Play it yourself/);
      ok(await page.locator('#duel').isHidden(), 'the scores stay');
      await untilStepped(page);
      return last;
    },
  },
  {
    name: 'a person who does what the agent does has its score',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch' });
      await restart(page, 2);
      await page.click('#takeover');
      await until(page, '#takeover', /Leave/);
      await until(page, '#time', /step [1-9]/);
      await restart(page, 2); // both from the start, and standing still
      let steps = 0;
      for (; steps < 40 && !(await text(page, '#duel-last')); steps += 1) {
        const chosen = await text(page, '#probabilities .chosen span');
        if (chosen !== 'stay') await page.keyboard.press(chosen === 'left' ? 'ArrowLeft' : 'KeyD');
        const time = await text(page, '#time');
        await page.click('#single');
        await page.waitForFunction((time) => document.querySelector('#time').textContent !== time || document.querySelector('#duel-last').textContent !== '', time);
      }
      const last = await text(page, '#duel-last');
      ok(/^A draw, 1 to 1/.test(last), `after ${steps} steps: ${last}`);
      // Frozen until the next level, which is the same for both.
      ok(await page.locator('#next-level').isVisible(), 'the next level is not offered');
      ok((await page.evaluate(() => document.activeElement.id)) === 'next-level', 'Enter does not start the next level');
      await page.click('#play');
      await assertUnchanged(page, '#time', 'the duel continues after its end');
      await page.click('#next-level');
      await until(page, '#time', /step [1-9]/);
      ok(await page.locator('#verdict').isHidden(), 'the verdict stays');
      await page.keyboard.press('Escape');
      await until(page, '#takeover', /Play it yourself/);
    },
  },
  {
    name: 'taking over continues the same game, each name is over its board, and leaving returns the game',
    webgpu: 'too',
    async run(visit) {
      for (const game of ['fruit', 'cartpole']) {
        const page = await visit.open({ hash: `#game=${game}` });
        await until(page, '#time', /step (9|1\d) /);
        await page.click('#play');
        await until(page, '#play', /Play/);
        await waitFrames(page, 10); // until all texts describe the step at which it stopped
        const before = await text(page, '#time');
        await page.click('#takeover');
        await until(page, '#count', /[123]/);
        ok((await text(page, '#time')) === before, `another game begins: ${await text(page, '#time')} instead of ${before}`);
        // The boards part once the stage has its new shape, a few frames on.
        const apart = page.waitForFunction((beside) => {
          const [agent, person, stage] = ['duel-agent', 'duel-person', 'stage'].map((id) => document.getElementById(id).getBoundingClientRect());
          return beside ? person.x - agent.x > stage.width / 3 : person.y - agent.y > stage.height / 3;
        }, game === 'fruit');
        await apart.catch(async () => {
          const [agent, person] = await Promise.all(['#duel-agent', '#duel-person'].map((one) => page.locator(one).boundingBox()));
          ok(false, `the names of ${game} are at ${agent.x}, ${agent.y} and ${person.x}, ${person.y}`);
        });
        await until(page, '#time', /step [4-9]\d /);
        await visit.screenshot(page, `duel-${game}`);
        await page.keyboard.press('Escape');
        await until(page, '#takeover', /Play it yourself/);
        const [, left] = /step (\d+)/.exec(before);
        await page.waitForFunction((left) => Number(/step (\d+)/.exec(document.querySelector('#time').textContent)[1]) < Number(left) + 15, left)
          .catch(async () => ok(false, `after it the game is at ${await text(page, '#time')}, not at ${before}`));
        ok((await text(page, '#play')) === 'Play', 'a game that was paused plays after it');
        await page.context().close();
      }
    },
  },
  {
    name: 'the mean is of one policy, and on a wall of all its games, with its error; a click picks a board',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch&games=16&speed=max' });
      await until(page, '#episodes', /\d{3}/);
      await until(page, '#wall-out', /^16$/);
      ok(/^[\d.]+ ± \d/.test(await text(page, '#mean')), `the mean is ${await text(page, '#mean')}`);
      const panel = await page.locator('#panel').evaluate((one) => one.scrollWidth - one.clientWidth);
      ok(panel <= 1, `the panel's content is ${panel} px too wide`);
      const framed = () => page.locator('#picked').boundingBox();
      const before = await framed();
      const stage = await page.locator('#stage .canvas canvas').boundingBox();
      await page.mouse.click(stage.x + stage.width * 0.62, stage.y + stage.height * 0.7);
      const after = await eventually('another frame', framed, ({ x, y }) => x !== before.x && y !== before.y);
      ok(after.x < stage.x + stage.width * 0.62 && after.x + after.width > stage.x + stage.width * 0.6, 'another board is framed');
      await page.locator('#actions input[value=sampled]').check({ force: true });
      await until(page, '#episodes', /^[\d,]{1,5} games?$/);
      await visit.screenshot(page, 'wall-picked');
      // An agent beside another takes the place of the wall, in the link, too.
      await page.click('#beside summary');
      await page.check('#rivals input[value=untrained]');
      await until(page, '#wall-out', /^1$/);
      ok(!/games=/.test(page.url()), `the link is ${page.url()}`);
    },
  },
  {
    name: 'loaded policies stay, and several play the same levels side by side, each with its name and its mean',
    webgpu: 'too',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch&speed=max' });
      ok((await page.locator('#names span').allTextContents()).join() === 'Pretrained,Untrained', 'no untrained agent is beside it');
      const { bytes } = await saveAgent(page);
      const lazy = Buffer.from(bytes); // weights of 0: it goes to the left
      lazy.fill(0, 8 + Number(bytes.readBigUInt64LE(0)));
      await loadAgents(page, [{ name: 'lazy.safetensors', buffer: lazy }]);
      await loadAgents(page, [{ name: 'good.safetensors', buffer: bytes }]);
      // Every run's policy has the same name.
      await loadAgents(page, [{ name: 'lazy.safetensors', buffer: bytes }]);
      await until(page, '#agent option:checked', /^File lazy\.safetensors \(2\)$/);
      await page.selectOption('#agent', 'file good.safetensors');
      await until(page, '#agent', /good/);
      const agents = await page.locator('#agent option').allTextContents();
      ok(agents.join() === 'Pretrained,Untrained,File good.safetensors,File lazy.safetensors,File lazy.safetensors (2)', `the agents are ${agents}`);
      await page.click('#beside summary');
      await page.uncheck('#rivals input[value=untrained]');
      await page.check('#rivals input[value="file lazy.safetensors"]');
      await page.check('#rivals input[value=ready]');
      await until(page, '#rivals', /of [\d,]{3,}.*of [\d,]{3,}.*of [\d,]{3,}/);
      await page.click('#play');
      await until(page, '#play', /Play/);
      await waitFrames(page, 10); // until all texts describe the step at which it stopped
      const rows = await page.locator('#rivals li').allTextContents();
      const of = (name) => /([−\d.]+)(?: ± [\d.]+)? of (\d+)$/.exec(rows.find((row) => row.includes(name))).slice(1).map((x) => Number(x.replace('−', '-')));
      const [good, ready, bad] = ['good', 'Pretrained', 'lazy'].map(of);
      ok(good.join() === ready.join(), `the same policy scores ${good} and ${ready} on the same levels`);
      ok(good[1] === bad[1] && bad[0] < good[0] - 0.5, `beside ${good} the lazy one has ${bad}`);
      const names = await page.locator('#names span').allTextContents();
      ok(names.join() === 'File good.safetensors,Pretrained,File lazy.safetensors', `over the boards stands ${names}`);
      await visit.screenshot(page, 'side-by-side');
      await page.click('#play');
      await pickGame(page, 'fruit');
      await until(page, '#references', /7\.75/);
      ok((await page.locator('#names p').count()) === 2, 'the names stay over another game');
    },
  },
  {
    name: 'an agent beside another leaves its board when its training is reset or it goes on the stage',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch&speed=max&groups=16&size=8&width=16&layers=1&iterations=10000' });
      await page.click('#train-here');
      await until(page, '#agent option:checked', /^Trained here/);
      await page.selectOption('#agent', 'ready');
      await page.click('#beside summary');
      await page.check('#rivals input[value="here 1"]');
      const names = () => page.locator('#names span').allTextContents().then(String);
      ok((await names()) === 'Pretrained,Untrained,Your agent', `over the boards stands ${await names()}`);
      await page.selectOption('#agent', 'untrained');
      await until(page, '#names', /^Untrained[^U]*Your agent[^U]*$/);
      await page.click('#reset');
      await page.waitForFunction(() => document.querySelectorAll('#names p, #rivals [value="here 1"]').length === 0);
    },
  },
  {
    name: 'taking over a game that has just ended begins the next level',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch' });
      await restart(page, 2);
      for (let time = await text(page, '#time'); !/step 9 of 9/.test(time); time = await text(page, '#time')) {
        await page.click('#single');
        await untilChanged(page, '#time', time);
      }
      // The panel at the first state, read in the page so that no later state is read.
      const [time, verdict] = await page.evaluate(async () => {
        const [time, verdict] = ['#time', '#duel-last'].map((one) => document.querySelector(one));
        const before = time.textContent;
        document.querySelector('#takeover').click();
        for (let i = 0; i < 60 && time.textContent === before; i += 1) await new Promise(requestAnimationFrame);
        return [time.textContent, verdict.textContent];
      });
      ok(/step 0 /.test(time) && verdict === '', `it begins at ${time}: ${verdict}`);
    },
  },
  {
    name: 'a press of Play, Pause or Step ends the countdown',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch' });
      const isCounting = async () => /[123]/.test(await text(page, '#count')) && await page.locator('#count').isVisible();
      for (const presses of [['#play', '#play'], ['#single']]) {
        await page.click('#takeover');
        await eventually('the countdown', isCounting);
        for (const press of presses) await page.click(press);
        ok(await page.locator('#count').isHidden(), `${presses} leave the countdown`);
        await until(page, '#play', /^Play$/);
        await waitFrames(page, 30); // the motion of the last step
        await assertUnchanged(page, '#time', `the game runs after ${presses}`, 150);
        await page.keyboard.press('Escape');
        await until(page, '#takeover', /Play it yourself/);
      }
    },
  },
  {
    name: 'the end of a duel leaves the focus in a field in which one types',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch&speed=4' });
      await page.click('#takeover');
      await page.focus('#seed');
      await page.locator('#verdict').waitFor();
      ok((await page.evaluate(() => document.activeElement.id)) === 'seed', 'the focus goes to another level');
    },
  },
  {
    name: 'a duel in another game starts afresh, without the previous verdict',
    async run(visit) {
      // On a wall no agent comes beside the other, which would end the duel.
      const page = await visit.open({ hash: '#game=catch&games=4&speed=4' });
      await page.click('#takeover');
      await until(page, '#duel-last', /Games won/);
      await pickGame(page, 'fruit');
      await page.waitForFunction(() => /Fruits fall/.test(document.querySelector('#rules').textContent) && document.querySelector('#verdict').hidden);
      ok(/Leave/.test(await text(page, '#takeover')), 'the duel is over');
      await until(page, '#time', /step [1-9]\d? of 100/);
      await until(page, '#duel-last', /Games won: agent [01], you [01]\./);
    },
  },
  {
    name: 'reference scores, and the rules that are trained, belong to the settings of the policy',
    async run(visit) {
      const page = await visit.open({ hash: '#groups=16&size=8&width=16&layers=1&iterations=3' });
      ok(/7\.75/.test(await text(page, '#references')), 'none for the usual game');
      const { bytes } = await saveAgent(page);
      const wide = Buffer.from(settingsOf(bytes).replace('max_steps = 100', 'max_steps = 70'));
      await loadAgents(page, [{ name: 'config.toml', buffer: wide }, { name: 'weights.safetensors', buffer: bytes }]);
      await until(page, '#time', /of 70/);
      ok((await text(page, '#references')) === '', `beside another game: ${await text(page, '#references')}`);
      ok(await page.locator('#ruler').isHidden(), 'the ruler stays');
      await trainToEnd(page, /^Finished fruit/);
      await page.selectOption('#agent', 'here 1');
      const trained = settingsOf((await saveAgent(page)).bytes);
      ok(/max_steps = 70/.test(trained), `the rules are others: ${trained}`);
      await until(page, '#time', /of 70/);
    },
  },
];
