// Completions of a language model: tokens shaded by their log-probability, rewards, and filters.

import { make, write, fixed, score } from "./dom.js";

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
    const properties = { title: `${name}: ${fixed(100 * Math.exp(logprob), 1)} %`, className: `p${shadeOf(logprob)}${end ? " end" : ""}` };
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
  /** Lists completions in an element, by the filters of a form; `wanted(iteration)` is called when the visitor
      asks for an iteration, or undefined for the newest. */
  constructor(holder, form, wanted) {
    Object.assign(this, { holder, form });
    this.bySource = new Map(); // by where they come from
    this.highestScores = new Map(); // the highest scores, by the same; 1 where none is known
    this.drawnAt = -Infinity;
    this.unshaded = new WeakMap(); // the completions without shades, by their elements
    this.viewObserver = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        this.viewObserver.unobserve(target);
        target.replaceWith(shadedText(this.unshaded.get(target)));
      }
    }, { rootMargin: "50%" });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", ({ target }) => {
      if (target.name === "iteration") wanted(this.readFilters().iteration);
      this.draw();
    });
    form.addEventListener("reset", () => setTimeout(() => { wanted(undefined); this.draw(); }));
    holder.addEventListener("mouseleave", () => this.drawSoon());
  }

  /** The completions of the chosen source. */
  get all() {
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
  isRight({ score, reward, highest_score: own }) {
    const highest = own ?? this.highestScores.get(this.source) ?? 1;
    return reward !== null && Math.abs((score ?? reward) - highest) <= SCORE_TOLERANCE;
  }

  /** Adds completions of one or more iterations, in their order. */
  add(source, records) {
    const known = this.bySource.get(source) ?? [];
    // An iteration replaces a shorter list of itself, and is skipped otherwise; earlier ones are put in front.
    const [before, now] = [countByIteration(known), countByIteration(records)];
    const isFresh = ({ iteration }) => now.get(iteration) > (before.get(iteration) ?? 0);
    const fresh = records.filter(isFresh);
    const all = [...known.filter((one) => !isFresh(one)), ...fresh].sort((a, b) => a.iteration - b.iteration || a.group - b.group);
    const late = fresh.length > 0 && fresh[0].iteration > all[all.length >> 1].iteration;
    this.bySource.set(source, late ? withinLimits(all.reverse()).reverse() : withinLimits(all));
    if (source === this.source) this.drawSoon();
  }

  /** The filters. */
  readFilters() {
    const { elements } = this.form;
    const number = (name) => (elements[name].value === "" ? undefined : elements[name].valueAsNumber);
    return { iteration: number("iteration"), least: number("least"), most: number("most"), end: elements.end.value, text: elements.text.value };
  }

  /** Updates the list soon, but not under the pointer. */
  drawSoon() {
    if (this.waiting) return;
    this.waiting = true;
    const rest = Math.max(0, REDRAW_MS - (performance.now() - this.drawnAt));
    setTimeout(() => {
      this.waiting = false;
      const read = this.holder.matches(":hover") && matchMedia("(hover: hover)").matches;
      if (!read && !this.holder.closest("[hidden]")) this.draw();
    }, rest);
  }

  /** Lists the completions that fit the filter, by default those of the newest iteration, and says how many do. */
  draw() {
    this.drawnAt = performance.now();
    const { iteration, least, most, end, text } = this.readFilters();
    const bounded = [least, most].some((value) => value !== undefined);
    const searched = bounded || iteration !== undefined || end !== "all" || text !== "";
    const newest = this.all.at(-1)?.iteration;
    const fits = (one) => (iteration === undefined || one.iteration === iteration)
      && (searched || one.iteration === newest)
      && (!bounded || (one.reward !== null && !(one.reward < least) && !(one.reward > most)))
      && (end === "all" || one.is_truncated === (end === "cut"))
      && (text === "" || one.completion.includes(text) || one.prompt.includes(text));
    const found = this.all.filter(fits);
    const groups = new Map();
    for (const one of found) {
      const key = `${one.iteration} ${one.group}`;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(one);
    }
    // The newest iteration comes first; its prompts are in their order.
    const list = [...groups.values()].sort(([a], [b]) => b.iteration - a.iteration || a.group - b.group).slice(0, MAX_GROUPS);
    this.holder.classList.toggle("long", list.flat().some(({ completion, prompt }) => completion.length > LONG_CHARS || prompt.length > LONG_CHARS));
    this.viewObserver.disconnect();
    this.shadesLeft = MAX_SHADED_TOKENS;
    this.holder.replaceChildren(...list.map((group) => this.promptCard(group)));
    const shown = list.flat().length;
    const of = searched ? `that fit, of ${this.all.length}` : `of iteration ${newest}`;
    this.showNote(this.all.length === 0 ? "" : found.length === 0 ? `none of ${this.all.length} fits` : `${shown} of ${found.length} ${of}`);
  }

  showNote(text) {
    write(this.form.querySelector("output"), text);
  }

  /** A completion's text, shaded or to be shaded. */
  textOf(completion) {
    this.shadesLeft -= completion.logprobs.length;
    if (this.shadesLeft >= 0) return shadedText(completion);
    const plain = make("code", { className: "tokens", textContent: `${completion.completion}${completion.is_truncated ? "" : END_MARK}` });
    this.unshaded.set(plain, completion);
    this.viewObserver.observe(plain);
    return plain;
  }

  /** A prompt with its completions. */
  promptCard(group) {
    const [{ prompt, iteration }] = group;
    const parts = [...new Set(group.flatMap(({ rewards }) => Object.keys(rewards)))];
    const head = ["completion", "reward", ...parts, "adv."].map((name) => make("th", { scope: "col", textContent: name }));
    const rows = group.map((one) => make("tr", { className: this.isRight(one) ? "right" : "" },
      make("td", {}, verdictMark(this.isRight(one)), this.textOf(one), ...(one.is_truncated ? [make("small", { textContent: "…", title: "cut off" })] : []), ...(one.problem ? [make("small", { className: "trouble", textContent: ` ${one.problem}` })] : [])),
      make("td", { textContent: fixed(one.reward) }),
      ...parts.map((name) => make("td", { textContent: score(one.rewards[name]) })),
      make("td", { className: one.advantage > 0 ? "up" : one.advantage < 0 ? "down" : "", textContent: `${one.advantage > 0 ? "+" : ""}${fixed(one.advantage, 1)}` })));
    const about = `iteration ${iteration}, ${group.filter((one) => this.isRight(one)).length} of ${group.length} right`;
    return make("li", {},
      make("p", { className: "prompt" }, make("code", { textContent: prompt }), make("span", { className: "hint", textContent: about })),
      make("table", { "aria-label": `Completions of ${prompt}` }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
  }
}

/** A legend of the shades. */
export function shadesLegend() {
  const steps = Array.from({ length: NUM_SHADES + 1 }, (_, i) => make("span", { className: `p${i}`, textContent: `${Math.round(100 * Math.exp(-i * SHADE_NATS))}` }));
  return make("p", { className: "hint shades" }, "Shade: how likely a token was, in %", make("code", { className: "tokens" }, ...steps), `${END_MARK} ends an answer, … was cut off.`);
}
