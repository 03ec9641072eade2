// Text: a language model that learns a task, in this tab or in a watched run.

import { $, make, write, say, announce, enable, fixed, sentence, short } from "./dom.js";
import { Curves, TEXT } from "./curves.js";
import { Charts, TEXT_CHARTS, moreTextCharts } from "./charts.js";
import { Completions, legend, mark, shaded } from "./completions.js";
import { BUTTON, Control, RESTORED, resuming } from "./control.js";
import { inFrame } from "./frames.js";
import { download, readBytes } from "./keep.js";
import { progress } from "./live.js";
import { writeToml } from "./toml.js";

/** The model: small enough to learn in front of one's eyes. */
const MODEL = { hidden_size: 64, num_layers: 2, num_heads: 4, num_kv_heads: 2, intermediate_size: 192, context: 64 };
/** Settings without a field. */
const REST = { "checkpoint.eval_every": 10, "checkpoint.eval_episodes": 64, "generation.slots": 128, "fit.learning_rate": 0.002 };

/** The fields: label, limits, default, and the path of the setting. */
const FIELDS = [
  { id: "length", label: "Digits", min: 2, max: 16, step: 1, value: 5, path: "sort.length" },
  { id: "prompts", label: "Prompts per iteration", min: 1, max: 64, step: 1, value: 24, path: "generation.num_prompts" },
  { id: "size", label: "Group size", min: 2, max: 32, step: 1, value: 8, path: "generation.group_size" },
  { id: "fit", label: "SFT iterations", min: 0, max: 10_000, step: 1, value: 40, path: "fit.iterations" },
  { id: "iterations", label: "All iterations", min: 1, max: 10_000, step: 1, value: 200, path: "iterations" },
  { id: "rate", label: "Learning rate", min: 0, max: 0.1, step: "any", value: 0.0006, path: "optimizer.learning_rate" },
  { id: "seed", label: "Seed", min: 0, max: 2 ** 32 - 1, step: 1, value: 1, path: "seed" },
];

/** Sampled completions of a visitor's prompt, beside the most likely one. */
const DRAWN = 4;
/** Milliseconds between two requests for completions. */
const BETWEEN = 1000;

/** The longest prompt that fits the context with its answer: as many digits, and a token more for each. */
const MAX_DIGITS = MODEL.context / 2 - 1;

/** The tasks that are not named as they are in settings: what is learnt, and the name on the tab. */
const TASKS = { sort: ["to sort", "sort"], data: ["a task of your own", "own task"] };

/** The advice in a warning: settings that the form has not. */
const ADVICE = /: [^:]* may help\./g;

/** The name of the one run. */
const RUN = "here";

export class Text extends Control {
  /** `opened(on)` is called when the page shows text or stops showing it. */
  constructor(opened) {
    super({ module: "text", product: "model", store: "text", trouble: "text-trouble", here: new Curves(TEXT), on: {
      about: (_, about) => this.learns(about),
      answers: (message) => this.answer(message),
      file: (bytes, why) => (bytes ? download("sort.safetensors", bytes) : say(`The model cannot be saved: ${why}`)),
    } });
    this.opened = opened;
    this.renewed = () => this.renew();
    this.on = false;
    this.next = new Map(); // requests for completions that wait, by kind
    this.curves = this.here;
    this.source = "here";
    this.completions = new Completions($("completions"), $("filter"), (iteration) => this.fetch(iteration));
    for (const { id, label, min, max, step, value } of FIELDS) {
      const input = make("input", { type: "number", id: `text-${id}`, required: true, min, max, step, value });
      $("text-fields").append(make("label", { htmlFor: input.id, textContent: label }, input));
    }
    $("shades").append(legend());
    this.draw([]);
    this.completions.show(RUN);
    $("text-settings").addEventListener("submit", (event) => { event.preventDefault(); this.start(); });
    this.guard($("text-settings"), $("text-start"));
    $("text-pause").addEventListener("click", () => this.toggle());
    $("text-defaults").addEventListener("click", () => this.restore());
    $("text-reset").addEventListener("click", () => this.reset());
    $("text-save").addEventListener("click", () => this.training.tell({ do: "file" }));
    $("text-load").addEventListener("click", () => $("text-files").click());
    $("text-files").addEventListener("change", async () => {
      await this.load($("text-files").files);
      $("text-files").value = "";
    });
    $("text-csv").addEventListener("click", () => download("text-curves.csv", this.curves.csv()));
    $("ask").addEventListener("submit", (event) => { event.preventDefault(); this.ask(); });
    $("text-source").addEventListener("change", (event) => this.show(event.target.value));
    this.renew();
  }

  /** Shows text, or games again. */
  open(on) {
    if (on === this.on) return;
    this.on = on;
    document.body.classList.toggle("text", on);
    $("text").hidden = !on;
    this.opened(on);
    this.charts.forEach((charts) => charts.touch());
    this.completions.later();
    this.beginFirst();
  }

  /** Trains when the tab is first opened, once it is known that there is no run to resume or to watch, here or in another
      tab of the browser. */
  async beginFirst() {
    if (!this.on || !this.settled || this.begun || this.live || this.state !== "idle") return;
    this.begun = true;
    if (!(await this.hold())) return say("Another tab is training the language model. Press Train to train one here, too.");
    if (this.state === "idle") this.start();
  }

  /** Called once kept and watched runs have been looked for. */
  settle() {
    this.settled = true;
    this.beginFirst();
  }

  /** Trains the model in a file further; returns whether it does. A file without one leaves everything as it is. */
  async load([file]) {
    try {
      const run = this.read(await readBytes(file));
      if (!run) return false;
      await this.training.check(run.wanted[0]);
      this.begun = true; // the first training is this one
      const begins = await this.train(run);
      if (begins) this.loaded = file.name;
      if (begins === false) say(`${file.name} is not loaded: a training that another tab has left goes on. To replace it, load the file again.`);
      return true;
    } catch (error) {
      say(`${file.name}: ${sentence(error)}`);
      return false;
    }
  }

  /** Draws the charts, with one for each part of the reward. */
  draw(parts) {
    if (`${parts}` === this.parts) return;
    this.parts = `${parts}`;
    for (const id of ["text-charts", "text-more"]) $(id).replaceChildren();
    this.charts = [new Charts(this.curves, $("text-charts"), TEXT_CHARTS), new Charts(this.curves, $("text-more"), moreTextCharts(parts))];
  }

  /** Trains a fresh model; `paused` waits for the visitor. */
  start(paused = false) {
    const run = this.read();
    if (run) this.train(run, paused);
  }

  /** Begins a new run, unless another tab has left one, which goes on instead; returns whether it has begun, undefined if
      neither does. */
  async train(run, paused = false) {
    if (this.preparing || !(await this.prepare("text"))) return undefined;
    if (this.left) {
      this.goOn(paused);
      return false;
    }
    this.beginNew(run, paused);
    return true;
  }

  /** Remembers the run that a reload or another tab has left. */
  adopt(left) {
    this.left = left.find(({ own }) => own);
  }

  /** The run of the form, with a fresh model or the one in a file; undefined, with the reasons beside the fields, if
      settings are out of range. */
  read(file) {
    $("text-settings").querySelector("details").open ||= !$("text-settings").checkValidity();
    if (!$("text-settings").reportValidity()) return undefined;
    const own = Object.fromEntries(FIELDS.map(({ id, path }) => [path, $(`text-${id}`).valueAsNumber]));
    const model = Object.fromEntries(Object.entries(MODEL).map(([key, value]) => [`model.${key}`, value]));
    const text = writeToml({ task: "sort", ...own, ...model, ...REST });
    return { own, way: "CPU", wanted: [{ seed: RUN, iterations: own.iterations, text, file }] };
  }

  /** Puts back the defaults of the form. */
  restore() {
    for (const { id, value } of FIELDS) $(`text-${id}`).value = value;
    announce(RESTORED);
  }

  /** Resumes a training that a reload or a closed tab has left. */
  async resume() {
    if ((await this.stored()).length > 0 && (await this.hold()) && this.left && !this.busy()) this.goOn(this.left.paused);
  }

  /** Continues the run that was left. */
  goOn(paused) {
    const run = this.left;
    this.left = undefined;
    for (const { id, path } of FIELDS) $(`text-${id}`).value = run.own[path];
    this.begin(run, paused);
    this.newest = run.records[RUN]?.at(-1);
    this.touch();
    announce(resuming("the language model", paused));
  }

  begin(run, paused) {
    this.digits = run.own["sort.length"];
    super.begin(run, paused, this.asked());
    this.show("here");
  }

  /** The task and the model of a run that has started. */
  learns(about) {
    this.about = about;
    this.draw(about.parts);
    if (this.loaded) announce(`Loaded ${this.loaded}; training continues by GRPO alone.`);
  }

  clear() {
    super.clear();
    this.loaded = undefined;
    this.completions.clear(RUN);
  }

  reset() {
    super.reset();
    $("answers").replaceChildren();
    this.touch();
  }

  failed(seed, iteration, why) {
    super.failed(seed);
    this.trouble(why);
    this.renew();
  }

  record(seed, record, completions) {
    super.record(seed, record);
    this.completions.add(RUN, completions);
    this.touch();
  }

  /** Redraws the charts and the words soon. */
  touch() {
    this.charts.forEach((charts) => charts.touch());
    this.later();
  }

  later() {
    inFrame(this.renewed);
  }

  /** Sends the visitor's prompt, which the model answers now and after each iteration. */
  ask() {
    const digits = [...$("question").value].filter((letter) => /\d/.test(letter)).join("");
    if (digits.length === 0) return write($("ask-about"), "Type some digits, such as 4 2 7 1 9.");
    if (digits.length > MAX_DIGITS) return write($("ask-about"), `Type at most ${MAX_DIGITS} digits.`);
    // A fresh model would take the place of the kept one.
    if (this.state === "refused" && this.isKept()) return write($("ask-about"), "Reload the page to resume the training, then ask.");
    $("answers").replaceChildren();
    this.question = { digits, prompt: `${digits}>`, solution: [...digits].sort().join("") };
    if (!this.training.workers) this.start(true);
    else this.training.tell({ do: "ask", question: this.asked() });
  }

  /** The visitor's prompt for the worker, if there is one. */
  asked() {
    return this.question && { prompt: this.question.prompt, drawn: DRAWN };
  }

  answer({ prompt, answers, why }) {
    if (prompt !== this.question?.prompt) return;
    if (why) return write($("ask-about"), why);
    const { digits, solution } = this.question;
    write($("ask-about"), digits.length === this.digits ? "" : `It is trained on ${this.digits} digits; ${digits.length} may not work.`);
    const row = (one, i) => make("li", {}, mark(one.completion === solution), shaded(one),
      make("span", { className: "hint", textContent: i === 0 ? "most likely" : "sampled" }));
    $("answers").replaceChildren(...answers.map(row));
  }

  /** Shows the curves of a run of the program. */
  follow(curves, { run, task }) {
    this.live = curves;
    this.task = task;
    write($("text-source-live"), run);
    $("text-source").hidden = false;
    this.show("live");
  }

  /** Redraws the curves of the watched run, and fetches its completions. */
  news() {
    const last = this.live.runs.get("run")?.last;
    this.completions.highest.set("live", this.live.highest);
    if (!this.live.replays && this.furthest > (last?.iteration ?? -1)) {
      // Another run took its place, or it was resumed from an earlier checkpoint.
      this.known = this.furthest = undefined;
      this.completions.clear("live");
    }
    if (this.source === "live") {
      const parts = Object.keys(last?.rewards ?? {}); // none if the verifier judged no completion, or in SFT
      if (parts.length > 0) this.draw(parts);
      this.touch();
    }
    if (last && !last.fit && last.iteration !== this.known) this.fetch();
  }

  /** Fetches completions of an iteration, or the newest, one request at a time: of those that wait, the last of each kind. */
  async fetch(iteration) {
    if (!this.live) return;
    this.next.set(iteration === undefined ? "newest" : "asked", iteration);
    if (this.fetching) return;
    this.fetching = true;
    while (this.next.size > 0) {
      const [[kind, iteration]] = this.next;
      this.next.delete(kind);
      const newest = this.live.runs.get("run")?.last.iteration;
      try {
        const answer = await fetch(`run/completions.jsonl${iteration === undefined ? "" : `?iteration=${iteration}`}`);
        if (answer.ok) this.completions.add("live", (await answer.text()).split("\n").filter(Boolean).map((line) => JSON.parse(line)));
        // The completions of an iteration are written before its record; a run may write none.
        if (iteration === undefined) {
          this.known = newest;
          this.furthest = Math.max(newest ?? -1, this.furthest ?? -1);
        }
      } catch {
        // A lost connection is reported elsewhere; the next record causes another request.
      }
      await new Promise((done) => setTimeout(done, BETWEEN));
    }
    this.fetching = false;
  }

  /** Shows the training in this tab ("here") or the watched run ("live"). */
  show(source) {
    this.source = source;
    for (const input of document.getElementsByName("text-source")) input.checked = input.value === source;
    this.curves = source === "live" ? this.live : this.here;
    this.charts.forEach((charts) => charts.show(this.curves));
    this.completions.show(source);
    this.renew();
  }

  /** Names what the model learns, in the title and on the tab. */
  name(task) {
    const [what, short] = TASKS[task] ?? [`the task ${task}`, task];
    write($("text-title"), `A language model learns ${what}`);
    const tab = $("game").querySelector("input[value=sort] + span");
    if (tab) write(tab, `Text: ${short}`);
  }

  /** Writes the state of the training into buttons, titles and texts. */
  renew() {
    const { state, newest: last } = this;
    const live = this.source === "live";
    for (const id of ["text-settings", "ask"]) $(id).hidden = live;
    for (const id of ["text-run", "text-about-live"]) $(id).hidden = !live;
    $("text-about").hidden = live;
    this.name(live ? this.task : "sort");
    const worry = [...this.curves.runs.values()][0]?.worry;
    $("text-warning").hidden = !worry;
    write($("text-warning"), worry ? `Iteration ${worry.iteration}: ${live ? worry.warning : worry.warning.replace(ADVICE, ".")}` : "");
    write($("text-start"), this.replaces() ? "Restart" : "Train");
    enable($("text-start"), state !== "starting");
    $("text-start").classList.toggle("strong", !this.busy());
    enable($("text-pause"), ["running", "paused"].includes(state));
    write($("text-pause"), BUTTON[state] ?? "Pause");
    enable($("text-reset"), state !== "idle");
    enable($("text-save"), this.about && state !== "refused"); // else its worker is gone
    const { end } = this.curves;
    const iteration = this.curves.runs.size > 0 ? [...this.curves.runs.values()][0].last.iteration : 0;
    $("text-csv").hidden = iteration === 0;
    $("text-progress").value = end ? iteration / end : 0;
    const words = {
      idle: "Not started", refused: "Stopped: see what is wrong", starting: "Getting ready",
      running: last?.fit ? "SFT, imitating solutions" : "GRPO, learning from rewards", pausing: "Pausing", paused: last ? "Paused" : "Not trained yet",
      done: this.failures.length > 0 ? "Stopped: see what is wrong" : "Finished",
    }[state];
    const exact = this.here.evaluations("part exact").at(-1);
    const rest = [
      last && `iteration ${last.iteration} of ${this.here.end}`,
      Number.isFinite(exact) && `${fixed(100 * exact, 0)} % of held-out prompts right`,
      state === "running" && last && `${short(last.steps_per_second)} tokens a second`,
      state === "running" && this.remaining(),
    ].filter(Boolean).join(", ");
    const phase = [...this.curves.runs.values()][0]?.last.fit ? ": SFT, imitating solutions" : "";
    write($("text-state"), live ? `${progress(this.curves, iteration)}${phase}` : rest ? `${words}: ${rest}` : words);
    if (live) write($("tell-training"), this.live.trainedOn);
    else if (last && this.about) write($("tell-training"), `CPU, in WebAssembly, ${short(this.about.parameters)} parameters, ${short(last.steps_per_second)} tokens a second`);
  }
}
