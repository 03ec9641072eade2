// The charts: curves over the iterations, drawn on small canvases, one in a frame, a few times a second.

import { thinPoints } from "./curves.js";
import { $, make, setText, formatFixed, formatShort } from "./dom.js";
import { drawInFrame } from "./frames.js";

/** Milliseconds between two frames of a chart. */
const FRAME_MS = 300;

/** Colours of seeds in page.css. */
const NUM_SEED_COLOURS = 8;

/** Pixels of the page's text unless the visitor has set another size, and of the text on charts beside it. */
const USUAL_TEXT_PX = 16;
const CHART_TEXT_PX = 11;

/** Pixels of a curve of a single point. */
const SINGLE_POINT_PX = 8;

/** The share of a value below which a difference is rounding: the mean of equal values may differ from them in the
    last bit. */
const ROUNDING_SHARE = 1e-9;

/** A loss below this is explained as normal. */
const SMALL_LOSS = 0.05;

const GAME_CHARTS = [
  { key: "score", title: "Score", digits: 2, dots: "greedy" },
  { key: "loss", title: "Loss", digits: 4 },
  { key: "entropy", title: "Entropy, nats", digits: 3 },
  { key: "approx_kl", title: "KL of an update, nats", digits: 6 },
  { key: "clip_fraction", title: "Clip fraction", digits: 3 },
  { key: "zero_variance_fraction", title: "Share of zero-variance groups", digits: 3 },
  { key: "steps_per_second", title: "Steps a second", isShort: true },
];

/** The charts of a language model: the main ones, and the rest. */
export const TEXT_CHARTS = [
  { key: "part exact", title: "Share of right answers", digits: 2 },
  { key: "reward", title: "Reward", digits: 2 },
  { key: "completion_length", title: "Tokens of a completion", digits: 2 },
  { key: "entropy", title: "Entropy of a token, nats", digits: 3 },
];
export const moreTextCharts = (parts) => [
  ...parts.filter((name) => name !== "exact").map((name) => ({ key: `part ${name}`, title: `Reward part: ${name}`, digits: 2 })),
  { key: "loss", title: "Loss", digits: 4 },
  { key: "zero_variance_fraction", title: "Share of zero-variance groups", digits: 3 },
  { key: "distinct_fraction", title: "Share of distinct completions in a group", digits: 2 },
  { key: "truncated_fraction", title: "Share of completions cut off", digits: 3 },
  { key: "approx_kl", title: "KL of an update, nats", digits: 6 },
  { key: "tokens_per_second", title: "Tokens a second, overall", isShort: true },
  { key: "generated_tokens_per_second", title: "Tokens generated a second", isShort: true },
  { key: "learnt_tokens_per_second", title: "Tokens learnt from a second", isShort: true },
  { key: "verify", title: "Seconds for the verifier", digits: 3 },
];

export class Charts {
  /** Draws charts into an element, and the chart of the score into another, `first`. */
  constructor(curves, holder = $("charts"), charts = GAME_CHARTS, first = $("score-chart")) {
    this.curves = curves;
    this.onFrame = (now) => this.drawNext(now);
    this.classPrefix = charts === GAME_CHARTS ? "" : "text-"; // before the names of figures
    this.charts = charts.map((what) => new Chart(this, what));
    for (const { key, figure } of this.charts) (key === "score" ? first : holder).append(figure);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    this.colours = new Map();
    dark.addEventListener("change", () => { this.colours.clear(); this.touch(); });
    this.touch();
  }

  /** Replaces the curves. */
  show(curves) {
    this.curves = curves;
    this.chosenIteration = undefined;
    this.touch();
  }

  /** A legend of the seeds, their mean and their range, if there are several. */
  showSeeds(seeds) {
    const severalSeeds = seeds.length > 1 ? seeds : [];
    if (`${severalSeeds}` === this.namedSeeds) return;
    this.namedSeeds = `${severalSeeds}`;
    const entries = severalSeeds.map((seed, i) => make("li", { className: `seed seed-${i % NUM_SEED_COLOURS}`, textContent: `seed ${seed}` }));
    if (severalSeeds.length > 0) entries.push(make("li", { className: "line", textContent: "mean" }), make("li", { className: "band", textContent: "range" }));
    $("seeds").replaceChildren(...entries);
  }

  /** Words for imitation, whose loss is a negative log-likelihood, or for GRPO. */
  setImitation(isImitation) {
    $("lab").classList.toggle("imitates", isImitation);
    for (const chart of this.charts) {
      if (chart.key === "loss") setText(chart.figure.querySelector("b"), isImitation ? "Negative log-likelihood of the moves, nats" : chart.title);
      chart.showsImitation = isImitation;
    }
  }

  /** Redraws the charts soon; the score in the next frame if it is `isEvaluated`. */
  touch(isEvaluated = false) {
    for (const chart of this.charts) {
      chart.isDirty = true;
      if (isEvaluated && chart.key === "score") chart.isUrgent = true;
    }
    this.drawSoon();
  }

  drawSoon() {
    drawInFrame(this.onFrame);
  }

  /** Draws one chart in each frame, in turn, so that frames are short. */
  drawNext(now) {
    const dirtyCharts = this.charts.filter((chart) => chart.isDirty);
    const dueCharts = dirtyCharts.filter((chart) => now - chart.drawnAt > FRAME_MS || chart.isUrgent);
    dueCharts.sort((a, b) => Boolean(b.isUrgent) - Boolean(a.isUrgent) || a.drawnAt - b.drawnAt);
    dueCharts[0]?.draw(now);
    if (dirtyCharts.length > 1 || dueCharts.length === 0) {
      if (dueCharts.length > 0) this.drawSoon();
      else if (dirtyCharts.length > 0) setTimeout(() => this.drawSoon(), FRAME_MS / 3);
    }
  }

  /** Shows the values at an iteration in all charts; undefined for the newest. */
  choose(x) {
    if (x === this.chosenIteration) return;
    this.chosenIteration = x;
    for (const chart of this.charts) chart.isDirty = chart.isUrgent = true;
    this.drawSoon();
  }

  /** The size of the page's text in times of the usual one, cached until a chart has another size. */
  get textScale() {
    return (this.cachedTextScale ??= Number.parseFloat(getComputedStyle(document.documentElement).fontSize) / USUAL_TEXT_PX);
  }

  /** A colour of page.css, cached: the query forces a layout of the page. */
  colour(name) {
    if (!this.colours.has(name)) this.colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
    return this.colours.get(name);
  }
}

class Chart {
  constructor(owner, what) {
    Object.assign(this, { owner, ...what, drawnAt: -Infinity, isDirty: true });
    this.canvas = make("canvas", { tabIndex: 0, role: "img", "aria-label": `${this.title}: nothing yet` });
    this.output = make("output", { "aria-live": "off" }); // it changes all the time
    const legend = this.dots
      ? [make("ul", { className: "legend" }, make("li", { className: "line", textContent: "in training" }), make("li", { className: "dots", textContent: this.dots }))] : [];
    this.figure = make("figure", { className: `${owner.classPrefix}${this.key}` }, make("figcaption", {}, make("b", { textContent: this.title }), ...legend, this.output), this.canvas);
    if (this.key === "loss") {
      this.note = make("p", { className: "hint", hidden: true, textContent: "Near zero is normal: advantages have mean zero." });
      this.figure.append(this.note);
    }
    this.size = [0, 0];
    new ResizeObserver(([{ contentRect: { width, height } }]) => {
      this.size = [width, height];
      owner.cachedTextScale = undefined; // the text may have another size, too
      this.isDirty = this.isUrgent = true;
      owner.drawSoon();
    }).observe(this.canvas);
    for (const kind of ["pointermove", "pointerdown"]) this.canvas.addEventListener(kind, (event) => this.pointAt(event));
    this.canvas.addEventListener("blur", () => owner.choose(undefined));
    // A page that scrolls under a resting pointer does not change the choice made by keys.
    this.canvas.addEventListener("pointerleave", () => { if (owner.isPointed) owner.choose(undefined); });
    this.canvas.addEventListener("keydown", (event) => this.pressKey(event));
  }

  format(y) {
    return this.isShort ? formatShort(y) : formatFixed(y, this.digits);
  }

  pointAt(event) {
    if (!this.iterationAt) return;
    const x = Math.round(this.iterationAt(event.clientX - this.canvas.getBoundingClientRect().left));
    this.owner.isPointed = true;
    this.owner.choose(Math.max(this.first, Math.min(this.last, x)));
  }

  pressKey(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (step === undefined || !this.iterationAt) return;
    event.preventDefault();
    this.owner.isPointed = false;
    this.owner.choose(Math.max(this.first, Math.min(this.last, (this.owner.chosenIteration ?? this.last) + step)));
  }

  draw(now) {
    Object.assign(this, { drawnAt: now, isDirty: false, isUrgent: false });
    const [width, height] = this.size;
    const ratio = window.devicePixelRatio;
    const pixels = [width, height].map((side) => Math.round(side * ratio));
    const { lines, dots, mean, evaluated } = this.owner.curves.chartData(this.key);
    const thinned = { lines: lines.map(thinPoints), dots: dots.flatMap(thinPoints), mean: thinPoints(mean), evaluated: thinPoints(evaluated) };
    const points = [...thinned.lines.flat(), ...thinned.dots];
    const hasScale = this.key === "score" && this.owner.curves.references.length > 1; // a scale before the first point
    if (width === 0 || (points.length === 0 && !hasScale)) {
      [this.canvas.width, this.canvas.height] = pixels; // which clears it
      return this.describeEmpty();
    }
    // The CPU draws: the GPU is busy with training.
    const context = this.canvas.getContext("2d", { willReadFrequently: true });
    if (this.canvas.width !== pixels[0] || this.canvas.height !== pixels[1]) [this.canvas.width, this.canvas.height] = pixels;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    this.drawAxes(width, height, points, context);
    if (points.length === 0) return this.describeEmpty();
    this.drawCurves(context, thinned);
    this.describe(mean, evaluated);
  }

  /** Describes a chart without values. */
  describeEmpty() {
    this.iterationAt = undefined;
    setText(this.output, "");
    this.canvas.setAttribute("aria-label", `${this.title}: nothing yet`);
  }

  /** Draws the scales, the grid and the references. */
  drawAxes(width, height, points, context) {
    const { curves } = this.owner;
    const references = this.key === "score" ? curves.references : [];
    let low = points.reduce((least, { y }) => Math.min(least, y), Infinity);
    let high = points.reduce((most, { y }) => Math.max(most, y), -Infinity);
    // The whole climb, from the worst known player to the best: the scale stays as the curve grows.
    for (const [, y] of references) [low, high] = [Math.min(low, y), Math.max(high, y)];
    const differ = high - low > ROUNDING_SHARE * Math.max(Math.abs(low), Math.abs(high));
    const room = (differ ? high - low : Math.abs(high) || 1) * 0.06;
    [low, high] = [low - room, high + room];
    this.scale = [low, high];
    const { textScale } = this.owner;
    const rows = ticks(low, high, Math.max(2, height / (45 * textScale)));
    const name = (y) => (this.isShort ? formatShort(y) : formatFixed(y, rows.digits));
    context.font = `${CHART_TEXT_PX * textScale}px system-ui, sans-serif`;
    const [left, top, bottom] = [10 + Math.max(...rows.values.map((y) => context.measureText(name(y)).width)), 6, 18 * textScale];
    const right = Math.max(8, ...references.map(([player]) => 8 + context.measureText(player).width));
    this.first = points.reduce((least, { x }) => Math.min(least, x), 1);
    this.last = points.reduce((most, { x }) => Math.max(most, x), 0);
    // The axis of a long run that has just begun shows the beginning alone.
    const soon = Math.max(100, 2 ** Math.ceil(Math.log2(1.25 * this.last)));
    const end = Math.max(Math.min(curves.end, soon), this.last, this.first + 1);
    const span = (width - left - right) / (end - this.first);
    this.x = (x) => left + (x - this.first) * span;
    this.y = (y) => top + ((high - y) / (high - low)) * (height - top - bottom);
    this.bottom = height - bottom + 2;
    this.iterationAt = (pixel) => this.first + (pixel - left) / span;

    context.fillStyle = this.owner.colour("soft");
    context.strokeStyle = this.owner.colour("faint");
    context.textAlign = "right";
    for (const y of rows.values) {
      strokeLine(context, [left, this.y(y)], [width - right, this.y(y)]);
      context.fillText(name(y), left - 6, this.y(y) + 4 * textScale);
    }
    context.fillText("iteration", width - 1, height - 4 * textScale);
    const free = width - context.measureText("iteration").width - 8;
    context.textAlign = "center";
    for (const x of ticks(this.first, end, Math.max(3, width / (90 * textScale))).values) {
      const half = context.measureText(`${x}`).width / 2;
      if (Number.isInteger(x) && this.x(x) + half < free) context.fillText(`${x}`, this.x(x), height - 4 * textScale);
    }
    context.textAlign = "left";
    context.strokeStyle = this.owner.colour("mark");
    context.setLineDash([4, 4]);
    let above = -Infinity;
    for (const [player, y] of [...references].sort((a, b) => b[1] - a[1])) {
      strokeLine(context, [left, this.y(y)], [width - right, this.y(y)]);
      if (this.y(y) - above >= 12 * textScale) context.fillText(player, width - right + 5, this.y(y) + 4 * textScale);
      above = this.y(y);
    }
    context.setLineDash([]);
    if (this.owner.chosenIteration !== undefined) {
      context.strokeStyle = this.owner.colour("soft");
      const x = this.x(this.owner.chosenIteration);
      strokeLine(context, [x, top], [x, height - bottom]);
    }
  }

  /** Draws the curve of each run, if there are several, over their range, then the mean and the evaluations. */
  drawCurves(context, { lines, dots, mean, evaluated }) {
    const stroke = (points) => {
      context.beginPath();
      for (const { x, y } of points) context.lineTo(this.x(x), this.y(y));
      if (points.length === 1) context.lineTo(this.x(points[0].x) + SINGLE_POINT_PX, this.y(points[0].y));
      context.stroke();
    };
    context.save();
    context.beginPath();
    context.rect(this.x(this.first) - 4, 0, this.size[0], this.bottom);
    context.clip();
    context.lineJoin = "round";
    if (lines.length > 1) {
      this.drawBand(context, mean);
      context.globalAlpha = 0.85;
      context.lineWidth = 1.2;
      lines.forEach((line, i) => {
        context.strokeStyle = this.owner.colour(`seed-${i % NUM_SEED_COLOURS}`);
        stroke(line);
      });
      context.globalAlpha = 1;
    }
    context.strokeStyle = this.owner.colour("line");
    context.lineWidth = evaluated.length > 0 ? 1.2 : 2; // what is learnt is how well it plays
    stroke(mean);
    context.lineWidth = 2;
    context.strokeStyle = context.fillStyle = this.owner.colour("dots");
    if (evaluated.length > 1) stroke(evaluated); // else its dot
    for (const { x, y } of dots) {
      context.beginPath();
      context.arc(this.x(x), this.y(y), 3, 0, 2 * Math.PI);
      context.fill();
    }
    context.restore();
  }

  /** Fills the range of the runs in the mean, if there are several. */
  drawBand(context, mean) {
    if (mean.length < 2 || mean[0].low === undefined) return;
    context.beginPath();
    for (const { x, high } of mean) context.lineTo(this.x(x), this.y(high));
    for (const { x, low } of [...mean].reverse()) context.lineTo(this.x(x), this.y(low));
    context.fillStyle = this.owner.colour("line");
    context.globalAlpha = 0.12;
    context.fill();
    context.globalAlpha = 1;
  }

  /** The values as text. */
  describe(mean, evaluated) {
    const x = this.owner.chosenIteration;
    const nearestPoint = (points) => points.reduce((best, point) => (Math.abs(point.x - x) < Math.abs((best?.x ?? Infinity) - x) ? point : best), undefined);
    const shownPoint = x === undefined ? mean.at(-1) : nearestPoint(mean);
    const greedyPoint = x === undefined ? evaluated.at(-1) : evaluated.find((point) => point.x === x);
    const parts = shownPoint ? [`${x === undefined ? "" : `${shownPoint.x}: `}${this.format(shownPoint.y)}`] : [];
    if (greedyPoint) parts.push(`greedy ${this.format(greedyPoint.y)}`);
    setText(this.output, parts.join(", "));
    if (this.note) this.note.hidden = this.showsImitation || !(Math.abs(shownPoint?.y) < SMALL_LOSS);
    this.canvas.setAttribute("aria-label", `${this.title} over the iterations ${this.first} to ${this.last}: now ${parts.join(", ")}${evaluated.length > 1 ? `, after ${this.format(evaluated[0].y)} at first` : ""}, on a scale from ${this.scale.map(this.format, this).join(" to ")}. The arrow keys go through the iterations.`);
  }
}

function strokeLine(context, from, to) {
  context.beginPath();
  context.moveTo(...from);
  context.lineTo(...to);
  context.stroke();
}

/** Round numbers that divide a range into about `count` parts. */
function ticks(low, high, count) {
  const leastStep = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(leastStep));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= leastStep * 0.999);
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) values.push(i * step);
  return { values, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}
