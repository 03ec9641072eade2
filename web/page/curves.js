// The data of the charts: the records of one or several runs, by iteration.

/** The largest number of points that a curve is drawn with; more are averaged. */
const MAX_POINTS = 400;

/** The curves of a game's record, and the dots of an evaluation. */
const GAME_KEYS = ["score", "loss", "entropy", "approx_kl", "clip_fraction", "zero_variance_fraction", "steps_per_second"];
const GAME_CURVES = {
  keys: GAME_KEYS,
  dots: { score: ({ mean_score: score }) => score },
  values: (record) => Object.fromEntries(GAME_KEYS.map((key) => [key, record[key]])),
};

/** The curves of a language model's record: its numbers, and each part of the reward. SFT has no completions, and no
    numbers of them. */
export const TEXT_CURVES = {
  dots: { reward: ({ mean_score: reward }) => reward, "part exact": (evaluation) => evaluation.pass_at_1 },
  values: ({ is_sft, entropy, loss, score: reward, rewards, seconds: { phases }, steps_per_second, ...record }) => (is_sft ? { entropy, loss } : {
    entropy, loss, reward, tokens_per_second: steps_per_second, verify: phases.verify,
    ...Object.fromEntries(Object.entries(rewards).map(([name, value]) => [`part ${name}`, value])),
    ...Object.fromEntries(["completion_length", "truncated_fraction", "distinct_fraction", "zero_variance_fraction", "approx_kl", "generated_tokens_per_second", "learnt_tokens_per_second"].map((key) => [key, record[key]])),
  }),
};

/** A value of a CSV file; the name of a part of the reward may be any text. */
const csvCell = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);

export class Curves {
  constructor(kind = GAME_CURVES) {
    this.kind = kind;
    this.clear();
  }

  clear() {
    this.runs = new Map(); // by seed or name
    this.references = [];
    this.end = 0;
  }

  /** Adds a record of a run, unless its iteration is known. */
  add(name, record) {
    const { dots, values } = this.kind;
    if (!this.runs.has(name)) {
      this.runs.set(name, { lastRecord: undefined, lines: {}, dots: {} });
      this.runs = new Map([...this.runs].sort(([a], [b]) => a - b)); // workers report seeds in any order
    }
    const run = this.runs.get(name);
    const { iteration: x, evaluation } = record;
    if (run.lastRecord && x <= run.lastRecord.iteration) return;
    run.lastRecord = record;
    if (record.warning) run.lastWarning = record; // the last warning of a run of text
    for (const [key, y] of Object.entries(values(record))) if (Number.isFinite(y)) (run.lines[key] ??= []).push({ x, y });
    if (evaluation) {
      for (const [key, dot] of Object.entries(dots)) {
        const y = dot(evaluation);
        if (Number.isFinite(y)) (run.dots[key] ??= []).push({ x, y });
      }
    }
  }

  /** All data as CSV, a line for each iteration of each run. */
  csv() {
    const keys = this.kind.keys ?? [...new Set([...this.runs.values()].flatMap(({ lines }) => Object.keys(lines)))];
    const dotKeys = Object.keys(this.kind.dots).filter((key) => [...this.runs.values()].some(({ dots }) => dots[key]));
    const greedyName = (key) => (dotKeys.length > 1 ? `greedy_${key}` : "greedy");
    const names = [...keys, ...dotKeys.map(greedyName)];
    const rows = [["run", "iteration", ...names]];
    for (const [name, { lines, dots }] of this.runs) {
      const rowsByIteration = new Map();
      const put = (points, key) => points.forEach(({ x, y }) => rowsByIteration.set(x, { ...rowsByIteration.get(x), [key]: y }));
      for (const key of keys) put(lines[key] ?? [], key);
      for (const key of dotKeys) put(dots[key] ?? [], greedyName(key));
      for (const [x, values] of [...rowsByIteration].sort(([a], [b]) => a - b)) rows.push([name, x, ...names.map((key) => values[key] ?? "")]);
    }
    return `${rows.map((row) => row.map(csvCell).join(",")).join("\n")}\n`;
  }

  /** Marks a run as failed: its curve stays, but is left out of means. */
  markFailed(name) {
    if (this.runs.has(name)) this.runs.get(name).hasFailed = true;
  }

  /** The runs in means: those that have not failed, or all if all have. */
  countedRuns() {
    const runs = [...this.runs.values()];
    const intactRuns = runs.filter((run) => !run.hasFailed);
    return intactRuns.length > 0 ? intactRuns : runs;
  }

  /** The value of a key in the newest evaluation of each run. */
  evaluations(key = "score") {
    return this.countedRuns().map((run) => run.dots[key]?.at(-1)?.y).filter(Number.isFinite);
  }

  /** The data of a chart: a line and the dots of evaluations for each run, and the mean lines of both, those of
      several runs with their range. */
  chartData(key) {
    const runs = [...this.runs.values()];
    const [lines, dots] = ["lines", "dots"].map((kind) => runs.map((run) => run[kind][key] ?? []));
    const means = (kind) => meanLine(this.countedRuns().map((run) => run[kind][key] ?? []));
    return { lines, dots, mean: means("lines"), evaluated: means("dots") };
  }
}

/** The points that a curve is drawn with: between the ends of a long one, means of several iterations. */
export function thinPoints(points) {
  const size = Math.ceil(points.length / MAX_POINTS);
  if (size <= 1) return points;
  const means = [];
  for (let start = 0; start < points.length; start += size) {
    const part = points.slice(start, start + size);
    const mean = (key) => part.reduce((sum, point) => sum + point[key], 0) / part.length;
    means.push(Object.fromEntries(Object.keys(part[0]).map((key) => [key, mean(key)])));
  }
  return [points[0], ...means, points.at(-1)];
}

/** The mean of several runs and their range, `low` to `high`, at the iterations that all of them have. */
function meanLine(lines) {
  if (lines.length < 2) return lines[0] ?? [];
  const sums = new Map();
  for (const line of lines) {
    for (const { x, y } of line) {
      const sum = sums.get(x) ?? { x, y: 0, low: y, high: y, count: 0 };
      sum.y += y;
      [sum.low, sum.high] = [Math.min(sum.low, y), Math.max(sum.high, y)];
      sum.count += 1;
      sums.set(x, sum);
    }
  }
  const commonPoints = [...sums.values()].filter(({ count }) => count === lines.length);
  return commonPoints.map(({ x, y, low, high, count }) => ({ x, y: y / count, low, high })).sort((a, b) => a.x - b.x);
}
