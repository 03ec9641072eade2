// Completions of a language model: tokens shaded by their log-probability, rewards, and filters.

import { make, setText, formatFixed, formatScore } from "./dom.js";

/** The largest number of completions in memory and of their tokens; the iterations farthest from the latest go. */
const MAX_KEPT = 8_192;
const MAX_KEPT_TOKENS = 2_000_000;
/** Tokens that are shaded at once; beyond them, a completion is shaded when it comes into view. */
const MAX_SHADED_TOKENS = 4_000;
/** Groups on the page at a time. */
const MAX_GROUPS = 8;
/** Milliseconds between two updates of the list. */
const REDRAW_MS = 900;
/** The number of shades of a token, from certain to unlikely: classes in page.css. */
const NUM_SHADES = 7;
/** Nats between two shades. */
const SHADE_NATS = 0.4;
/** The length from which on a group of completions takes the full width. */
const LONG_CHARS = 40;
/** The number of letters in the names of a reward's parts, all together, from which on a group takes the full width, too. */
const LONG_HEADS = 20;
/** The mark at the end of a completion. */
const END_MARK = "◂";
/** The rounding of a score. */
const SCORE_TOLERANCE = 1e-9;

/** The shade of a token of this log-probability. */
const shadeOf = (logprob) => Math.min(NUM_SHADES, Math.floor(-logprob / SHADE_NATS + 0.5));

/** The tokens of a completion as texts: single characters by default, and one for its end. */
function tokenTexts({ completion, tokens, logprobs, is_truncated }) {
  const texts = tokens ?? [...completion];
  return logprobs.map((logprob, i) => ({ logprob, text: texts[i], end: texts[i] === undefined && !is_truncated }));
}

/** A completion's text, shaded token by token. */
export function shadedText(completion) {
  const parts = tokenTexts(completion).map(({ text, end, logprob }) => {
    const name = end ? "the end" : JSON.stringify(text ?? "");
    const properties = { title: `${name}: ${formatFixed(100 * Math.exp(logprob), 1)} %`, className: `p${shadeOf(logprob)}${end ? " end" : ""}` };
    return make("span", { ...properties, textContent: end ? END_MARK : text ?? "" });
  });
  return make("code", { className: "tokens" }, ...parts);
}

/** A tick or a cross. */
export const verdictMark = (holds) => make("span", { className: holds ? "mark right" : "mark", textContent: holds ? "✓" : "✗", title: holds ? "right" : "wrong" });

/** The first of these completions, as many as may be in memory. */
function withinLimits(completions) {
  let tokens = 0;
  const end = completions.findIndex(({ logprobs }, i) => i >= MAX_KEPT || (tokens += logprobs.length) > MAX_KEPT_TOKENS);
  return end < 0 ? completions : completions.slice(0, end);
}

/** The number of completions of each iteration. */
function countByIteration(records) {
  const counts = new Map();
  for (const { iteration } of records) counts.set(iteration, (counts.get(iteration) ?? 0) + 1);
  return counts;
}

export class Completions {
  /** Lists completions in an element, by the filters of a form; `onIteration(iteration)` is called when the visitor
      asks for an iteration, or undefined for the newest. */
  constructor(holder, form, onIteration) {
    Object.assign(this, { holder, form });
    this.bySource = new Map(); // by where they come from
    this.highestScores = new Map(); // the highest scores, by the same; 1 where none is known
    this.drawnAt = -Infinity;
    this.unshadedCompletions = new WeakMap(); // the completions without shades, by their elements
    this.viewObserver = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        this.viewObserver.unobserve(target);
        target.replaceWith(shadedText(this.unshadedCompletions.get(target)));
      }
    }, { rootMargin: "50%" });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", ({ target }) => {
      if (target.name === "iteration") onIteration(this.readFilters().iteration);
      this.draw();
    });
    form.addEventListener("reset", () => setTimeout(() => { onIteration(undefined); this.draw(); }));
    holder.addEventListener("mouseleave", () => this.drawSoon());
  }

  /** The completions of the chosen source. */
  get shownCompletions() {
    return this.bySource.get(this.source) ?? [];
  }

  /** Chooses the source. */
  show(source) {
    this.source = source;
    this.draw();
  }

  clear(source) {
    this.bySource.delete(source);
    if (source === this.source) this.draw();
  }

  /**
   * Whether a completion has the highest score: its own, or that of all. One that could not be judged has no reward;
   * older files have no score. Rewards of a larger scale have no known highest score.
   */
  isRight({ score, reward, highest_score: ownHighest }) {
    const highest = ownHighest ?? this.highestScores.get(this.source) ?? 1;
    return reward !== null && Math.abs((score ?? reward) - highest) <= SCORE_TOLERANCE;
  }

  /** Adds completions of one or more iterations, in their order. */
  add(source, records) {
    const formerRecords = this.bySource.get(source) ?? [];
    // An iteration replaces a shorter list of itself, and is skipped otherwise; earlier ones are put in front.
    const [formerCounts, counts] = [countByIteration(formerRecords), countByIteration(records)];
    const isLonger = ({ iteration }) => counts.get(iteration) > (formerCounts.get(iteration) ?? 0);
    const newRecords = records.filter(isLonger);
    const mergedRecords = [...formerRecords.filter((record) => !isLonger(record)), ...newRecords].sort((a, b) => a.iteration - b.iteration || a.group - b.group);
    const isLate = newRecords.length > 0 && newRecords[0].iteration > mergedRecords[mergedRecords.length >> 1].iteration;
    this.bySource.set(source, isLate ? withinLimits(mergedRecords.reverse()).reverse() : withinLimits(mergedRecords));
    if (source === this.source) this.drawSoon();
  }

  /** The filters. */
  readFilters() {
    const { elements } = this.form;
    const number = (name) => (elements[name].value === "" ? undefined : elements[name].valueAsNumber);
    return { iteration: number("iteration"), minReward: number("least"), maxReward: number("most"), end: elements.end.value, text: elements.text.value };
  }

  /** Updates the list soon, but not under the pointer. */
  drawSoon() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    const waitMs = Math.max(0, REDRAW_MS - (performance.now() - this.drawnAt));
    setTimeout(() => {
      this.isWaiting = false;
      const isBeingRead = this.holder.matches(":hover") && matchMedia("(hover: hover)").matches;
      if (!isBeingRead && !this.holder.closest("[hidden]")) this.draw();
    }, waitMs);
  }

  /** Lists the completions that fit the filter, by default those of the newest iteration, and says how many do. */
  draw() {
    this.drawnAt = performance.now();
    const completions = this.shownCompletions;
    const { iteration, minReward, maxReward, end, text } = this.readFilters();
    const hasBounds = [minReward, maxReward].some((bound) => bound !== undefined);
    const isFiltered = hasBounds || iteration !== undefined || end !== "all" || text !== "";
    const newestIteration = completions.at(-1)?.iteration;
    const fits = (record) => (iteration === undefined || record.iteration === iteration)
      && (isFiltered || record.iteration === newestIteration)
      && (!hasBounds || (record.reward !== null && !(record.reward < minReward) && !(record.reward > maxReward)))
      && (end === "all" || record.is_truncated === (end === "cut"))
      && (text === "" || record.completion.includes(text) || record.prompt.includes(text));
    const fittingRecords = completions.filter(fits);
    const groups = new Map();
    for (const record of fittingRecords) {
      const key = `${record.iteration} ${record.group}`;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(record);
    }
    // The newest iteration comes first; its prompts are in their order.
    const list = [...groups.values()].sort(([a], [b]) => b.iteration - a.iteration || a.group - b.group).slice(0, MAX_GROUPS);
    const isLong = ({ completion, prompt, rewards }) => completion.length > LONG_CHARS || prompt.length > LONG_CHARS || Object.keys(rewards).join("").length > LONG_HEADS;
    this.holder.classList.toggle("long", list.flat().some(isLong));
    this.viewObserver.disconnect();
    this.shadesLeft = MAX_SHADED_TOKENS;
    this.holder.replaceChildren(...list.map((group) => this.promptCard(group)));
    const scope = isFiltered ? `that fit, of ${completions.length}` : `of iteration ${newestIteration}`;
    if (completions.length === 0) this.showNote("");
    else if (fittingRecords.length === 0) this.showNote(`none of ${completions.length} fits`);
    else this.showNote(`${list.flat().length} of ${fittingRecords.length} ${scope}`);
  }

  showNote(text) {
    setText(this.form.querySelector("output"), text);
  }

  /** A completion's text, shaded or to be shaded. */
  textOf(completion) {
    this.shadesLeft -= completion.logprobs.length;
    if (this.shadesLeft >= 0) return shadedText(completion);
    const plain = make("code", { className: "tokens", textContent: `${completion.completion}${completion.is_truncated ? "" : END_MARK}` });
    this.unshadedCompletions.set(plain, completion);
    this.viewObserver.observe(plain);
    return plain;
  }

  /** A prompt with its completions. */
  promptCard(group) {
    const [{ prompt, iteration }] = group;
    const parts = [...new Set(group.flatMap(({ rewards }) => Object.keys(rewards)))];
    const head = ["completion", "reward", ...parts, "adv."].map((name) => make("th", { scope: "col", textContent: name }));
    const rows = group.map((record) => make("tr", { className: this.isRight(record) ? "right" : "" },
      make("td", {}, verdictMark(this.isRight(record)), this.textOf(record), ...(record.is_truncated ? [make("small", { textContent: "…", title: "cut off" })] : []), ...(record.problem ? [make("small", { className: "trouble", textContent: ` ${record.problem}` })] : [])),
      make("td", { textContent: formatFixed(record.reward) }),
      ...parts.map((name) => make("td", { textContent: formatScore(record.rewards[name]) })),
      make("td", { className: record.advantage > 0 ? "up" : record.advantage < 0 ? "down" : "", textContent: `${record.advantage > 0 ? "+" : ""}${formatFixed(record.advantage, 1)}` })));
    const note = `iteration ${iteration}, ${group.filter((record) => this.isRight(record)).length} of ${group.length} right`;
    return make("li", {},
      make("p", { className: "prompt" }, make("code", { textContent: prompt }), make("span", { className: "hint", textContent: note })),
      make("table", { "aria-label": `Completions of ${prompt}` }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
  }
}

/** A legend of the shades. */
export function shadesLegend() {
  const steps = Array.from({ length: NUM_SHADES + 1 }, (_, i) => make("span", { className: `p${i}`, textContent: `${Math.round(100 * Math.exp(-i * SHADE_NATS))}` }));
  return make("p", { className: "hint shades" }, "Shade: how likely a token was, in %", make("code", { className: "tokens" }, ...steps), `${END_MARK} ends an answer, … was cut off.`);
}
