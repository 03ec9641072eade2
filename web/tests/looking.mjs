// The page as it looks and is reached: at all sizes, in light and dark, by keyboard, finger and screen reader.

import { readFile } from 'node:fs/promises';
import { shortTraining } from './training.mjs';
import { assertUnchanged, eventually, gameNames, ok, pickGame, setSlider, text, trainToEnd, until, untilStepped, waitFrames } from './visit.mjs';

/** Notes in the page the numbers of the actions that a person takes. */
const recordActions = (page) => page.evaluate(async () => {
  const { Show } = await import('./watch.js');
  const { step } = Show.prototype;
  window.actions = new Set();
  Show.prototype.step = function (action) { window.actions.add(action); return step.call(this, action); };
});

/** Waits until the person has taken an action, calling `again()` until then. */
const untilTaken = (page, action, again = () => {}) => eventually(`action ${action}`, async () => {
  await again();
  return page.evaluate((action) => window.actions.has(action), action);
});

/** The buttons of a game's actions: the key on each. */
const padKeys = (page) => page.locator('#pads button kbd').allTextContents();

/** Violations that axe-core finds in the page, as text. */
export async function findViolations(page, when) {
  if (!(await page.evaluate(() => 'axe' in window))) {
    await page.evaluate(await readFile(new URL('node_modules/axe-core/axe.min.js', import.meta.url), 'utf8'));
  }
  const { violations } = await page.evaluate(() => window.axe.run({ rules: { 'target-size': { enabled: true } } }));
  return violations.map(({ id, nodes }) => `${when}: ${id} at ${nodes.map(({ target }) => target).join(', ')}`);
}

export default [
  {
    name: 'at every width nothing is too wide and the game picker is in the first view, light and dark',
    async run(visit) {
      for (const [width, height] of [[320, 640], [390, 844], [768, 1024], [1280, 800], [1920, 1080]]) {
        for (const colorScheme of ['light', 'dark']) {
          const page = await visit.open({ options: { viewport: { width, height }, colorScheme } });
          const wide = await page.evaluate(() => document.documentElement.scrollWidth);
          ok(wide <= width, `at ${width} the page is ${wide} px wide`);
          const picker = await page.locator('#game').boundingBox();
          ok(picker.y + picker.height < height, `at ${width} the game picker ends at ${picker.y + picker.height}`);
          const [board, controls] = await Promise.all(['#stage', '#controls > .row'].map((one) => page.locator(one).first().boundingBox()));
          ok(Math.abs(board.x - controls.x) < 1 && Math.abs(board.width - controls.width) < 2, `at ${width} the board is ${board.width} px wide at ${board.x}, the controls ${controls.width} at ${controls.x}`);
          const outside = await page.evaluate(() => [...document.querySelectorAll('button, input, select')].filter((one) => {
            const [box, around] = [one.getBoundingClientRect(), one.parentElement.getBoundingClientRect()];
            return one.checkVisibility() && box.right > around.right + 1;
          }).map((one) => one.id));
          ok(outside.length === 0, `at ${width} beyond their rows: ${outside}`);
          await visit.screenshot(page, `at-${width}-${colorScheme}`, true);
          await page.context().close();
        }
      }
    },
  },
  {
    name: 'on a phone nothing is too wide, and touch steers',
    webgpu: 'too',
    async run(visit) {
      const page = await visit.open({ options: { viewport: { width: 360, height: 740 }, deviceScaleFactor: 2, hasTouch: true, isMobile: true } });
      await visit.screenshot(page, 'phone', true);
      const wide = () => page.evaluate(() => document.documentElement.scrollWidth);
      ok((await wide()) <= 360, `the page is ${await wide()} px wide`);
      await page.tap('#takeover');
      await until(page, '#takeover', /Leave/);
      ok(await page.locator('#pads button', { hasText: 'left' }).isVisible(), 'no buttons for fingers');
      ok((await wide()) <= 360, 'taking over makes the page too wide');
      const small = await page.evaluate(() => [...document.querySelectorAll('#controls button')].filter((one) => one.checkVisibility() && one.clientHeight < 32).length);
      ok(small === 0, 'a button is too small for a finger');
      await until(page, '#time', /step [1-9]/);
      const before = await visit.describePicture(page);
      await page.locator('#pads button', { hasText: 'right' }).tap();
      await eventually('another picture', () => visit.describePicture(page), ({ hash }) => hash !== before.hash);
      await visit.screenshot(page, 'phone-takeover');
    },
  },
  {
    name: 'every control is reached by the keyboard, with a visible focus and a name',
    async run(visit) {
      const page = await visit.open();
      const wanted = await page.evaluate(() => [...document.querySelectorAll('button, select, input:not([type=radio], [type=file]), summary, #charts canvas')]
        .filter((one) => one.checkVisibility() && !one.disabled).map((one) => one.id || one.textContent));
      const reached = new Set();
      for (let i = 0; i < wanted.length + 25; i += 1) {
        await page.keyboard.press('Tab');
        const { id, plain, nameless } = await page.evaluate(() => {
          const one = document.activeElement;
          const lit = one.matches('[type=radio]') ? one.nextElementSibling : one;
          const name = one.ariaLabel || one.textContent.trim() || [...(one.labels ?? [])].map((label) => label.textContent).join('');
          return { id: one.id || one.textContent, plain: getComputedStyle(lit).outlineStyle === 'none' && one !== document.body, nameless: !name && one !== document.body };
        });
        ok(!plain, `the focus on ${id} is not to be seen`);
        ok(!nameless, `${id} has no name`);
        reached.add(id);
      }
      const missed = wanted.filter((id) => !reached.has(id));
      ok(missed.length === 0, `not reached: ${missed.join(', ')}`);
      return `${wanted.length} controls`;
    },
  },
  {
    name: 'the focus stays on a button that is pressed, and returns from a message',
    async run(visit) {
      const page = await visit.open({ hash: shortTraining(visit, 10000) });
      const focused = async (id) => {
        const found = await page.evaluate(() => document.activeElement.id);
        ok(found === id, `the focus is on ${found || 'nothing'} instead of ${id}`);
      };
      await page.focus('#train-here');
      for (const state of [/^Training catch: iteration \d/, /^Paused catch/, /^Training catch: iteration \d/]) {
        await page.keyboard.press('Enter');
        await until(page, '#state', state);
        await waitFrames(page, 2);
        await focused('train-here');
      }
      await page.focus('#reset');
      await page.keyboard.press('Enter');
      await until(page, '#state', /^Not started/);
      await focused('reset');
      await page.focus('#defaults');
      await page.keyboard.press('Enter');
      await page.locator('.notice button').focus();
      await page.keyboard.press('Enter');
      await focused('defaults');
    },
  },
  {
    name: 'the watched board of a wall can also be chosen by keys',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch&games=16' });
      await page.locator('#board').focus();
      const frame = () => page.locator('#picked').evaluate((one) => one.style.left);
      const before = await frame();
      await page.keyboard.press('ArrowUp');
      await eventually('another board in the frame', frame, (left) => left !== before);
      ok((await page.inputValue('#board')) === '2', `the field says ${await page.inputValue('#board')}`);
      await setSlider(page, '#wall', 0);
      await page.locator('#board').waitFor({ state: 'hidden' });
    },
  },
  {
    name: 'the link that skips to the training keeps the game and the settings',
    async run(visit) {
      const page = await visit.open({ hash: '#game=catch&rate=0.003' });
      const skipped = page.evaluate(() => new Promise((done) => addEventListener('hashchange', () => done(location.hash))));
      await page.locator('.skip').focus();
      await page.keyboard.press('Enter');
      const hash = await skipped;
      ok(/game=catch&rate=0\.003/.test(hash), `the link is ${hash}`);
      ok(await page.locator('#game input[value=catch]').isChecked(), 'another game is picked');
      await pickGame(page, 'sort');
      await page.locator('.skip').focus();
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => document.activeElement.id === 'text');
    },
  },
  {
    name: 'axe-core finds nothing while watching, in a duel and in training',
    // Not with WebGPU: the elements are the same, and a second page beside this one slows a software adapter.
    async run(visit) {
      const found = [];
      for (const colorScheme of ['light', 'dark']) {
        const page = await visit.open({ hash: shortTraining(visit), options: { colorScheme } });
        const look = async (when) => found.push(...(await findViolations(page, `${when}, ${colorScheme}`)));
        await look('watching');
        await page.click('#takeover');
        await until(page, '#time', /step [1-9]/);
        await look('in a duel');
        await page.keyboard.press('Escape');
        await page.click('#start');
        await until(page, '#state', /iteration ([2-9]|\d\d)/);
        await page.click('#words summary');
        await look('in training, with what the curves are');
      }
      ok(found.length === 0, found.join('; '));
    },
  },
  {
    name: 'axe-core finds nothing in the view of each game, on a wall, side by side and after a training',
    async run(visit) {
      const found = [];
      const page = await visit.open({ hash: '#game=catch&groups=16&size=8&width=16&layers=1&iterations=2&seeds=2' });
      await trainToEnd(page);
      await page.click('#beside summary');
      found.push(...(await findViolations(page, 'after a training of two seeds')));
      await setSlider(page, '#wall', 6);
      await until(page, '#wall-out', /^64$/);
      found.push(...(await findViolations(page, 'on a wall')));
      for (const game of await gameNames(page)) {
        await pickGame(page, game);
        await until(page, '#settings-of', /./);
        found.push(...(await findViolations(page, game)));
      }
      ok(found.length === 0, found.join('; '));
    },
  },
  {
    name: 'a key that is held presses a button once',
    async run(visit) {
      const page = await visit.open();
      await page.locator('#takeover').focus();
      for (let i = 0; i < 4; i += 1) await page.keyboard.down('Enter');
      await page.keyboard.up('Enter');
      ok(/Leave/.test(await text(page, '#takeover')), 'the button is pressed again');
    },
  },
  {
    name: 'every game is picked and played by keys alone',
    async run(visit) {
      const page = await visit.open();
      await recordActions(page);
      const codes = { '←': 'ArrowLeft', '→': 'ArrowRight', '↑': 'ArrowUp', '↓': 'ArrowDown' };
      await page.locator('#game input:checked').focus();
      const games = await gameNames(page);
      for (const game of games) {
        for (let i = 0; i < games.length && !(await page.locator(`#game input[value=${game}]`).isChecked()); i += 1) await page.keyboard.press('ArrowRight');
        await until(page, '#names', /Untrained/);
        await page.locator('#takeover').focus();
        await page.keyboard.press('Enter');
        await page.locator('#count').waitFor({ state: 'hidden' });
        await page.evaluate(() => window.actions.clear());
        for (const [i, key] of (await padKeys(page)).entries()) {
          const code = codes[key] ?? key;
          await page.keyboard.down(code);
          await untilTaken(page, i);
          await page.keyboard.up(code);
        }
        await page.keyboard.press('Escape');
        await page.locator('#game input:checked').focus();
      }
    },
  },
  {
    name: 'every game is picked and played by touch alone',
    async run(visit) {
      const page = await visit.open({ options: { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true } });
      await recordActions(page);
      for (const game of await gameNames(page)) {
        await page.locator(`#game label:has(input[value=${game}])`).tap();
        await until(page, '#names', /Untrained/);
        await page.tap('#takeover');
        await page.locator('#count').waitFor({ state: 'hidden' });
        await page.evaluate(() => window.actions.clear());
        for (const i of (await padKeys(page)).keys()) {
          await untilTaken(page, i, () => page.locator('#pads button').nth(i).tap());
        }
        await page.tap('#takeover');
      }
    },
  },
  {
    name: 'watching, taking over, training and saving need only the keyboard',
    async run(visit) {
      const page = await visit.open({ hash: shortTraining(visit) });
      const go = async (id) => {
        for (let i = 0; i < 80; i += 1) {
          if (await page.evaluate((id) => document.activeElement.id === id, id)) return;
          await page.keyboard.press('Tab');
        }
        throw new Error(`#${id} is not reached`);
      };
      await go('play');
      await page.keyboard.press('Space');
      await until(page, '#play', /Play/);
      await page.keyboard.press('Shift+Tab'); // takes nothing over
      await waitFrames(page, 30);
      ok(/Play it yourself/.test(await text(page, '#takeover')), 'Shift and Tab take over');
      await go('takeover');
      await page.keyboard.press('Enter');
      await until(page, '#duel-last', /Games won/);
      await page.keyboard.press('Tab');
      await go('next-level');
      await page.keyboard.press('Enter');
      await page.keyboard.press('Escape');
      await until(page, '#takeover', /Play it yourself/);
      await go('start');
      await page.keyboard.press('Enter');
      await until(page, '#state', /^Finished/);
      await go('save');
      const [file] = await Promise.all([page.waitForEvent('download'), page.keyboard.press('Enter')]);
      ok(file.suggestedFilename() === 'catch.safetensors', `saved is ${file.suggestedFilename()}`);
    },
  },
  {
    name: 'light and dark are both readable, and less motion is respected',
    async run(visit) {
      const ratios = [];
      for (const colorScheme of ['light', 'dark']) {
        const page = await visit.open({ options: { colorScheme, reducedMotion: 'reduce' } });
        const ratio = await page.evaluate(leastContrast);
        ok(ratio >= 4.5, `a contrast in the ${colorScheme} is ${ratio.toFixed(1)}`);
        ratios.push(ratio.toFixed(1));
        ok((await text(page, '#play')) === 'Play', 'it moves by itself');
        await assertUnchanged(page, '#time', 'it moves by itself');
        await page.click('#play');
        await untilStepped(page);
        await visit.screenshot(page, colorScheme, true);
      }
      return `least contrasts ${ratios.join(' and ')}`;
    },
  },
  {
    name: 'in forced colours the picked game, the bars and the legend keep their colours',
    async run(visit) {
      for (const colorScheme of ['light', 'dark']) {
        const page = await visit.open({ options: { forcedColors: 'active', colorScheme } });
        const backgrounds = (selector, pseudo) => page.locator(selector).evaluateAll((all, pseudo) => all.map((one) => getComputedStyle(one, pseudo).backgroundColor), pseudo);
        const [picked, other] = [await backgrounds('#game input:checked + span'), await backgrounds('#game input:not(:checked) + span')];
        ok(!other.includes(picked[0]), `in ${colorScheme} the picked game looks like another`);
        const [bar, beside] = [await backgrounds('#probabilities i'), await backgrounds('#probabilities em')];
        ok(bar.every((colour) => !beside.includes(colour)), `in ${colorScheme} bars are not to be seen`);
        const [dots, ground] = [await backgrounds('#score-chart .dots', '::before'), await backgrounds('body')];
        ok(dots[0] !== ground[0], `in ${colorScheme} the legend has no dot`);
        await visit.screenshot(page, `forced-${colorScheme}`, true);
      }
    },
  },
  {
    name: 'the picture follows the size of the window',
    webgpu: 'too',
    async run(visit) {
      const page = await visit.open();
      const sharp = () => page.evaluate(() => {
        const canvas = document.querySelector('#stage .canvas canvas');
        return canvas.width / canvas.clientWidth;
      });
      for (const [width, height] of [[900, 700], [500, 800], [1500, 1000]]) {
        await page.setViewportSize({ width, height });
        await eventually(`a picture at ${width} x ${height}`, () => visit.describePicture(page), ({ colours, width: wide }) => colours >= 4 && wide <= width);
        await eventually('a sharp picture', sharp, (ratio) => (visit.gpu ? Math.abs(ratio - 1) < 0.01 : ratio > 0.4));
        await untilStepped(page);
      }
    },
  },
];

/** Runs in the page: the least contrast of a text to what is behind it (WCAG 2.2, 1.4.3). */
function leastContrast() {
  const parse = (colour) => (/[\d.]+/.test(colour) ? colour.match(/[\d.]+/g).map(Number) : [0, 0, 0, 0]);
  const light = (colour) => {
    const [r, g, b] = parse(colour).map((x) => (x / 255 <= 0.04045 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((parse(colour)[3] ?? 1) > 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  let least = Infinity;
  for (const element of document.querySelectorAll('main *, header *, footer *')) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest(':disabled')) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
    least = Math.min(least, (a + 0.05) / (b + 0.05));
  }
  return least;
}
