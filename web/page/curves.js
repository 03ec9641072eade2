// The numbers behind the charts: the records of one or several runs, iteration by iteration.

/** Points that a curve is drawn with at most; more are averaged. */
const MOST = 400;

/** What is drawn of a record. */
export const KEYS = ["score", "loss", "entropy", "approx_kl", "clip_fraction", "zero_variance_groups", "steps_per_second"];

export class Curves {
  constructor() {
    this.clear();
  }

  clear() {
    this.runs = new Map(); // by seed or name
    this.references = [];
    this.end = 0;
  }

  /** Takes a record of a run; iterations that are known already are left out. */
  add(name, record) {
    if (!this.runs.has(name)) this.runs.set(name, { last: undefined, lines: Object.fromEntries(KEYS.map((key) => [key, []])), dots: [] });
    const run = this.runs.get(name);
    if (run.last && record.iteration <= run.last.iteration) return false;
    run.last = record;
    for (const key of KEYS) if (Number.isFinite(record[key])) run.lines[key].push({ x: record.iteration, y: record[key] });
    if (record.evaluation) run.dots.push({ x: record.iteration, y: record.evaluation.mean_score });
    return true;
  }

  /** All that is known, a line for each iteration of each run. */
  csv() {
    const rows = [["run", "iteration", ...KEYS, "greedy"]];
    for (const [name, { lines, dots }] of this.runs) {
      const at = new Map();
      const put = (points, key) => points.forEach(({ x, y }) => at.set(x, { ...at.get(x), [key]: y }));
      for (const key of KEYS) put(lines[key], key);
      put(dots, "greedy");
      for (const [x, values] of at) rows.push([name, x, ...[...KEYS, "greedy"].map((key) => values[key] ?? "")]);
    }
    return `${rows.map((row) => row.join(",")).join("\n")}\n`;
  }

  /** A run has failed: what it has done stays, but counts no more. */
  fail(name) {
    if (this.runs.has(name)) this.runs.get(name).failed = true;
  }

  /** The runs that count: those that go on, or all if none does. */
  counted() {
    const runs = [...this.runs.values()];
    const going = runs.filter((run) => !run.failed);
    return going.length > 0 ? going : runs;
  }

  /** The newest evaluation of each run. */
  evaluations() {
    return this.counted().map((run) => run.dots.at(-1)?.y).filter(Number.isFinite);
  }

  /** What to draw for a key: a line for each run, the mean line of several, and dots of evaluations. */
  of(key) {
    const runs = [...this.runs.values()];
    const lines = runs.map((run) => thinned(run.lines[key]));
    const dots = key === "score" ? runs.flatMap((run) => thinned(run.dots)) : [];
    return { lines, dots, mean: mean(this.counted().map((run) => run.lines[key])) };
  }
}

function thinned(points) {
  const size = Math.ceil(points.length / MOST);
  if (size <= 1) return points;
  const means = [];
  for (let at = 0; at < points.length; at += size) {
    const part = points.slice(at, at + size);
    const over = (key) => part.reduce((sum, point) => sum + point[key], 0) / part.length;
    means.push({ x: over("x"), y: over("y") });
  }
  return means;
}

/** The mean over the runs, at the iterations that all of them have. */
function mean(lines) {
  if (lines.length < 2) return thinned(lines[0] ?? []);
  const sums = new Map();
  for (const line of lines) {
    for (const { x, y } of line) {
      const sum = sums.get(x) ?? { x, y: 0, count: 0 };
      sum.y += y;
      sum.count += 1;
      sums.set(x, sum);
    }
  }
  const common = [...sums.values()].filter(({ count }) => count === lines.length);
  return thinned(common.map(({ x, y, count }) => ({ x, y: y / count })).sort((a, b) => a.x - b.x));
}
