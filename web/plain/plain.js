// The small page of `grove watch`: a run's numbers and two curves, as they come.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
/** Points that a curve is drawn with at most; more are averaged. */
const MOST = 600;

const fixed = (x, digits = 2) => (Number.isFinite(x) ? x.toFixed(digits).replace("-", "−") : "–");
const short = (x) => {
  if (!Number.isFinite(x)) return "–";
  const [unit, name] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([unit]) => x >= unit) ?? [1, ""];
  return `${(x / unit).toFixed(x / unit < 100 && name ? 1 : 0)}${name}`;
};

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Round numbers that divide a range into about `count` parts. */
function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(at * step);
  return { found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

/** At most `MOST` points: the means of equal stretches. */
function thinned(points) {
  const size = Math.ceil(points.length / MOST);
  if (size <= 1) return points;
  const means = [];
  for (let at = 0; at < points.length; at += size) {
    const part = points.slice(at, at + size);
    const mean = (key) => part.reduce((sum, point) => sum + point[key], 0) / part.length;
    means.push({ x: mean("x"), y: mean("y") });
  }
  return means;
}

/** A curve over the iterations, with dots and lines across. */
class Chart {
  constructor(id, what) {
    this.box = $(`${id}-chart`);
    this.readout = $(`${id}-readout`);
    this.what = what;
    this.svg = element("svg", { role: "img", tabindex: "0", "aria-label": `${what}: nothing yet` });
    this.box.append(this.svg);
    this.clear();
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.choose(undefined));
    this.svg.addEventListener("blur", () => this.choose(undefined));
    this.svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
      if (step === undefined || this.curve.length === 0) return;
      event.preventDefault();
      const last = this.curve.length - 1;
      this.choose(Math.min(last, Math.max(0, (this.chosen ?? last) + step)));
    });
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  clear() {
    this.curve = [];
    this.dots = [];
    this.references = [];
    this.end = 0;
    this.chosen = undefined;
  }

  point(event) {
    if (this.curve.length === 0) return;
    const x = this.from(event.clientX - this.svg.getBoundingClientRect().left);
    // The iterations are sorted.
    let [low, high] = [0, this.curve.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.curve[middle].x < x) low = middle;
      else high = middle;
    }
    this.choose(x - this.curve[low].x < this.curve[high].x - x ? low : high);
  }

  choose(index) {
    this.chosen = index;
    this.draw();
  }

  draw() {
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    const values = [...this.curve, ...this.dots].map((point) => point.y);
    if (width === 0 || values.length === 0) {
      this.svg.replaceChildren();
      this.readout.textContent = "";
      return;
    }
    const optimum = this.references.filter(({ player }) => player === "optimum");
    const all = values.concat(optimum.map(({ score }) => score));
    let low = all.reduce((a, b) => Math.min(a, b));
    let high = all.reduce((a, b) => Math.max(a, b));
    const room = (high - low || 1) * 0.06;
    [low, high] = [low - room, high + room];

    const rows = ticks(low, high, Math.max(3, height / 40));
    const widest = (texts, least) => Math.max(least, ...texts.map((text) => 12 + 7 * text.length));
    // All charts leave the same room for names at the right, so that their iterations are aligned.
    const right = widest(about.references?.map(({ player }) => player) ?? [], 24);
    const [left, top, bottom] = [widest(rows.found.map((y) => fixed(y, rows.digits)), 48), 8, 24];
    const first = this.curve[0].x;
    const last = Math.max(this.end, this.curve.at(-1).x, first + 1);
    const span = (width - left - right) / (last - first);
    const x = (at) => left + (at - first) * span;
    const y = (at) => top + ((high - at) / (high - low)) * (height - top - bottom);
    this.from = (pixel) => first + (pixel - left) / span;

    const parts = [];
    for (const at of rows.found) {
      parts.push(element("line", { class: "grid", x1: left, x2: width - right, y1: y(at), y2: y(at) }));
      parts.push(element("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end" }, fixed(at, rows.digits)));
    }
    for (const at of ticks(first, last, Math.max(3, width / 90)).found) {
      if (!Number.isInteger(at)) continue;
      parts.push(element("text", { x: x(at), y: height - 6, "text-anchor": "middle" }, `${at}`));
    }
    let above = -Infinity;
    for (const { player, score } of this.references.toSorted((a, b) => b.score - a.score)) {
      if (score < low || score > high || y(score) - above < 15) continue;
      above = y(score);
      parts.push(element("line", { class: "reference", x1: left, x2: width - right, y1: above, y2: above }));
      parts.push(element("text", { x: width - right + 5, y: above + 4 }, player));
    }
    const points = thinned(this.curve).map((point) => `${x(point.x).toFixed(1)},${y(point.y).toFixed(1)}`);
    parts.push(element("polyline", { class: "curve", points: points.join(" ") }));
    for (const dot of thinned(this.dots)) {
      parts.push(element("circle", { class: "dot", cx: x(dot.x), cy: y(dot.y), r: 4 }));
    }
    const chosen = this.curve[this.chosen];
    if (chosen) parts.push(element("line", { class: "cursor", x1: x(chosen.x), x2: x(chosen.x), y1: top, y2: height - bottom }));
    this.svg.replaceChildren(...parts);

    const shown = chosen ?? this.curve.at(-1);
    const dot = chosen && this.dots.find((dot) => dot.x === chosen.x);
    this.readout.textContent = chosen
      ? `iteration ${shown.x}: ${fixed(shown.y, 3)}${dot ? `, greedy ${fixed(dot.y, 3)}` : ""}`
      : "";
    this.svg.setAttribute(
      "aria-label",
      `${this.what} over the iterations ${first} to ${this.curve.at(-1).x}, from ${fixed(this.curve[0].y, 3)} to ` +
        `${fixed(this.curve.at(-1).y, 3)}. The arrow keys go through the points.`,
    );
  }
}

const charts = { score: new Chart("score", "Score"), entropy: new Chart("entropy", "Entropy") };
let about = {};
let recent = [];
let newest;
/** When the stream began, and when a record came that was not there by then. */
let began = 0;
let heard = 0;
let connected = false;
let drawing = false;

function clear() {
  Object.values(charts).forEach((chart) => chart.clear());
  recent = [];
  newest = undefined;
  heard = 0;
  began = Date.now();
  for (const id of ["iteration", "score", "greedy", "entropy", "speed"]) $(id).textContent = "–";
}

function row(name, value) {
  const made = document.createElement("tr");
  const head = Object.assign(document.createElement("th"), { scope: "row", textContent: name });
  made.append(head, Object.assign(document.createElement("td"), { textContent: value }));
  return made;
}

/** Nested settings as rows: `rollout.num_groups` and so on. */
function rows(table, prefix = "") {
  return Object.entries(table).flatMap(([key, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? rows(value, `${prefix}${key}.`)
      : [row(prefix + key, Array.isArray(value) ? value.join(", ") : `${value}`)],
  );
}

async function ask() {
  const answer = await fetch("/run/about.json");
  if (!answer.ok) return;
  about = await answer.json();
  document.title = `${about.run} · Grove`;
  $("game").textContent = about.game;
  $("run").textContent = about.run;
  const trained = about.trained_with;
  const facts = [
    trained?.device && row("device", `${trained.device.name}: ${trained.device.description}`),
    trained?.engine && row("engine", trained.engine),
    row("grove", trained?.grove ?? about.grove),
    row("seed", `${about.settings.seed}`),
    ...about.references.map(({ player, score }) => row(`score, ${player}`, fixed(score, 3))),
  ];
  $("facts").replaceChildren(...facts.filter(Boolean));
  $("settings").replaceChildren(...rows(about.settings));
  [about.best, about.newest].filter(Boolean).forEach(link);
  later();
}

function link({ which, iteration, weights }) {
  const id = `file-${which}`;
  const made = $(id) ?? $("files").appendChild(Object.assign(document.createElement("a"), { id }));
  made.href = weights;
  made.download = `${which}-${iteration}.safetensors`;
  made.textContent = `${which} policy (iteration ${iteration})`;
}

function take(record) {
  if (newest && record.iteration <= newest.iteration) return;
  newest = record;
  if (Date.now() - began > 1500) heard = Date.now();
  const x = record.iteration;
  if (Number.isFinite(record.score)) charts.score.curve.push({ x, y: record.score });
  if (Number.isFinite(record.entropy)) charts.entropy.curve.push({ x, y: record.entropy });
  if (record.evaluation) charts.score.dots.push({ x, y: record.evaluation.mean_score });
  recent = [record, ...recent.slice(0, 19)];
}

function draw() {
  drawing = false;
  $("iterations").textContent = about.iterations ? `of ${about.iterations}` : "";
  $("progress").value = newest && about.iterations ? newest.iteration / about.iterations : 0;
  if (newest) {
    $("iteration").textContent = `${newest.iteration}`;
    $("score").textContent = fixed(charts.score.curve.at(-1)?.y);
    $("entropy").textContent = fixed(newest.entropy, 3);
    $("speed").textContent = short(newest.steps_per_second);
    const { reduction, seconds } = newest;
    const share = reduction && Math.round((100 * reduction.seconds) / seconds.total);
    $("speed-note").textContent = reduction ? `steps a second; ${reduction.ranks ?? reduction.members} ranks, ${share} % of the time with each other` : "steps a second";
    const greedy = charts.score.dots.at(-1);
    $("greedy").textContent = fixed(greedy?.y);
    $("greedy-note").textContent = about.optimum ? `optimum ${fixed(about.optimum)}` : "at the last evaluation";
  }
  charts.score.references = about.references ?? [];
  for (const chart of Object.values(charts)) {
    chart.end = about.iterations ?? 0;
    chart.draw();
  }
  const cells = (r) => [r.iteration, fixed(r.score), fixed(r.evaluation?.mean_score), fixed(r.entropy, 3), fixed(r.approx_kl, 4), fixed(r.clip_fraction, 3)];
  $("records").replaceChildren(
    ...recent.map((record) => {
      const made = document.createElement("tr");
      made.append(...cells(record).map((text) => Object.assign(document.createElement("td"), { textContent: `${text}` })));
      return made;
    }),
  );
  status();
}

/** Draws once for all that comes at a time. */
function later() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(draw);
}

function status() {
  const [state, text] = !connected
    ? ["lost", "No connection, trying again"]
    : newest && newest.iteration >= about.iterations
      ? ["done", "Finished"]
      : newest && Date.now() - heard < Math.max(5_000, 3_000 * newest.seconds.total)
        ? ["live", "Training"]
        : ["idle", newest ? "No news" : "Waiting for the first iteration"];
  // Only changes are read out.
  if ($("status").textContent !== text) $("status").textContent = text;
  $("status").dataset.state = state;
}

function listen() {
  const events = new EventSource("/run/events");
  events.addEventListener("open", () => { connected = true; later(); });
  events.addEventListener("error", () => {
    connected = false;
    later();
    // The browser tries again by itself, but not where it got an answer that is no stream.
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  });
  events.addEventListener("start", () => { clear(); ask().catch(() => {}); later(); });
  events.addEventListener("record", (event) => { take(JSON.parse(event.data)); later(); });
  events.addEventListener("checkpoint", (event) => { link(JSON.parse(event.data)); later(); });
}

listen();
setInterval(status, 1000);
