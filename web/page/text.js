// Text: a language model that learns a task, in this tab or in a run that is watched.

import { $, make, write, say, fixed, short, sentence } from "./dom.js";
import { Curves, TEXT } from "./curves.js";
import { Charts, TEXT_CHARTS, moreTextCharts } from "./charts.js";
import { Completions, legend, mark, shaded } from "./completions.js";
import { inFrame } from "./frames.js";
import { download, forgetRun, keepRun, keptRun, onlyHere } from "./keep.js";
import { writeToml } from "./toml.js";

/** What is trained here: small enough that one sees it learn. */
const MODEL = { hidden_size: 64, num_layers: 2, num_heads: 4, num_kv_heads: 2, intermediate_size: 192, context: 64 };
/** And what nobody needs to set. */
const REST = { "checkpoint.eval_every": 10, "checkpoint.eval_episodes": 64, "generation.slots": 128, "fit.learning_rate": 0.002 };

/** Of each field: what it is called, its limits, its start, and the setting that it stands for. */
const FIELDS = [
  { id: "length", label: "Digits", min: 2, max: 16, step: 1, value: 8, path: "sort.length" },
  { id: "prompts", label: "Prompts", min: 1, max: 64, step: 1, value: 24, path: "generation.num_prompts" },
  { id: "size", label: "Group size", min: 2, max: 32, step: 1, value: 8, path: "generation.group_size" },
  { id: "fit", label: "Imitation, iterations", min: 0, max: 10_000, step: 1, value: 40, path: "fit.iterations" },
  { id: "iterations", label: "Iterations in all", min: 1, max: 10_000, step: 1, value: 400, path: "iterations" },
  { id: "rate", label: "Learning rate", min: 0, max: 0.1, step: "any", value: 0.0006, path: "optimizer.learning_rate" },
  { id: "seed", label: "Seed", min: 0, max: 2 ** 32 - 1, step: 1, value: 1, path: "seed" },
];

/** Milliseconds between two times that the run is kept in the browser's storage. */
const KEEP_RUN = 2_000;

/** Completions of a visitor's prompt: the surest one, and so many drawn ones. */
const DRAWN = 4;
/** Milliseconds between two requests for completions. */
const BETWEEN = 1000;
/** And how often the newest are asked for again where they are not there yet. */
const TRIES = 5;

const BUTTON = { starting: "Starting", running: "Pause", pausing: "Pausing", paused: "Go on" };

export class Text {
  /** `opened(on)` is called when the page turns to text or away from it. */
  constructor(opened) {
    this.opened = opened;
    this.renewed = () => this.renew();
    this.on = false;
    this.state = "idle"; // starting, running, pausing, paused, done, refused
    this.here = new Curves(TEXT);
    this.curves = this.here;
    this.source = "here";
    this.completions = new Completions($("completions"), $("filter"), (iteration) => this.fetch(iteration));
    for (const { id, label, min, max, step, value } of FIELDS) {
      const input = make("input", { type: "number", id: `text-${id}`, required: true, min, max, step, value });
      $("text-fields").append(make("label", { htmlFor: input.id, textContent: label }, input));
    }
    $("shades").append(legend());
    this.draw([]);
    this.completions.show("here");
    $("text-settings").addEventListener("submit", (event) => { event.preventDefault(); this.begin(); });
    $("text-pause").addEventListener("click", () => this.toggle());
    $("text-reset").addEventListener("click", () => this.reset());
    $("text-save").addEventListener("click", () => this.tell({ do: "file" }));
    $("text-load").addEventListener("click", () => $("text-files").click());
    $("text-files").addEventListener("change", async () => {
      await this.load($("text-files").files);
      $("text-files").value = "";
    });
    $("text-csv").addEventListener("click", () => download("text-curves.csv", new TextEncoder().encode(this.curves.csv())));
    $("ask").addEventListener("submit", (event) => { event.preventDefault(); this.ask(); });
    $("text-source").addEventListener("change", (event) => this.show(event.target.value));
    this.renew();
  }

  /** The page turns to text, or to games again. */
  open(on) {
    if (on === this.on) return;
    this.on = on;
    document.body.classList.toggle("text", on);
    $("text").hidden = !on;
    this.opened(on);
    this.charts.forEach((charts) => charts.touch());
    this.completions.later();
  }

  /** Goes on with the model in a file. */
  async load([file]) {
    this.begin(new Uint8Array(await file.arrayBuffer()));
    this.loaded = file.name;
  }

  busy() {
    return ["starting", "running", "pausing", "paused"].includes(this.state);
  }

  /** Draws the curves there are, and those of the parts of the reward. */
  draw(parts) {
    if (`${parts}` === this.parts) return;
    this.parts = `${parts}`;
    for (const id of ["text-charts", "text-more"]) $(id).replaceChildren();
    this.charts = [new Charts(this.curves, $("text-charts"), TEXT_CHARTS), new Charts(this.curves, $("text-more"), moreTextCharts(parts))];
  }

  /** Trains a fresh model, or the one in a file; `paused`: not before somebody says so. */
  begin(file, paused = false) {
    $("text-settings").querySelector("details").open ||= !$("text-settings").checkValidity();
    if (!$("text-settings").reportValidity()) return;
    const own = Object.fromEntries(FIELDS.map(({ id, path }) => [path, $(`text-${id}`).valueAsNumber]));
    this.start({ own, records: [] }, file, paused);
    onlyHere().then((only) => { this.alone = only; });
  }

  /** Goes on with a training that a reload or a closed tab has left. */
  async resume() {
    const run = await keptRun("text").catch(() => undefined); // that nothing is kept has been said
    if (!run || this.busy() || !(await onlyHere())) return;
    this.alone = true;
    for (const { id, path } of FIELDS) $(`text-${id}`).value = run.own[path];
    this.start(run, undefined, run.paused);
    for (const record of run.records) this.here.add("here", record);
    this.last = run.records.at(-1);
    this.touch();
    say("The training of text goes on from where it was left.", 6);
  }

  /** Trains, from the beginning or from where a run was left. */
  start(run, file, paused) {
    this.end();
    this.run = run;
    this.here.clear();
    this.here.end = run.own.iterations;
    this.completions.clear("here");
    this.trouble("");
    this.show("here");
    const model = Object.fromEntries(Object.entries(MODEL).map(([key, value]) => [`model.${key}`, value]));
    this.worker = new Worker(new URL("text-worker.js", import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data }) => this.hear(data);
    this.worker.onerror = (event) => {
      event.preventDefault();
      this.hear({ is: "refused", why: `The worker that trains has broken down: ${sentence(event.message || "it could not be loaded")}.` });
    };
    const text = writeToml({ task: "sort", ...run.own, ...model, ...REST });
    this.tell({ do: "start", text, file, kept: run.saved, paused, question: this.asked() });
    this.become("starting");
  }

  tell(message) {
    this.worker?.postMessage(message);
  }

  end() {
    this.worker?.terminate();
    this.worker = this.about = this.last = this.loaded = undefined;
    this.forget();
    this.pace = [];
  }

  /** Keeps the run in the browser's storage, from which a reload goes on. */
  keep(now = false) {
    if (!this.run?.saved || this.alone === false) return;
    if (!now && performance.now() - (this.kept ?? -Infinity) < KEEP_RUN) return;
    this.kept = performance.now();
    const paused = ["paused", "pausing"].includes(this.state);
    const records = this.run.records.filter(({ iteration }) => iteration <= this.run.saved.iteration);
    keepRun({ ...this.run, records, paused }, "text").catch(() => {}); // that nothing can be kept is said of games
  }

  forget() {
    if (this.run && this.alone !== false) forgetRun("text").catch(() => {});
    this.run = this.kept = undefined;
  }

  become(state) {
    this.state = state;
    if (["paused", "running"].includes(state)) this.keep(true);
    if (["done", "refused"].includes(state)) this.forget();
    this.renew();
  }

  toggle() {
    if (this.state === "running") {
      this.tell({ do: "pause" });
      this.become("pausing");
    } else if (this.state === "paused") {
      this.pace = [];
      this.tell({ do: "go on" });
      this.become("running");
    }
  }

  reset() {
    this.end();
    this.here.clear();
    this.completions.clear("here");
    $("answers").replaceChildren();
    this.trouble("");
    this.touch();
    this.become("idle");
  }

  trouble(text) {
    write($("text-trouble"), text);
    $("text-trouble").hidden = text === "";
  }

  hear(data) {
    if (data.is === "about") {
      this.about = data.about;
      this.here.end = data.about.iterations;
      this.draw(data.about.parts);
      if (this.loaded) say(`${this.loaded} goes on learning, without imitation.`, 6);
    } else if (data.is === "record") this.record(data.record, data.completions);
    else if (data.is === "saved") {
      this.run.saved = data.saved;
      this.keep();
    }
    else if (data.is === "answers") this.answer(data);
    else if (data.is === "file") download("sort.safetensors", data.file);
    else if (["refused", "failed"].includes(data.is)) {
      this.trouble(data.why);
      if (data.is === "refused") this.end();
      this.become("refused");
    } else this.become(data.is); // running, paused, done
  }

  record(record, completions) {
    if (this.state === "starting") this.state = "running";
    this.last = record;
    this.run.records.push(record);
    this.here.add("here", record);
    this.completions.add("here", completions);
    this.pace.push({ at: performance.now(), iteration: record.iteration });
    if (this.pace.length > 30) this.pace.shift();
    this.touch();
  }

  /** The curves have news. */
  touch() {
    this.charts.forEach((charts) => charts.touch());
    this.later();
  }

  later() {
    inFrame(this.renewed);
  }

  /** Puts the visitor's prompt to the model, now and after each iteration from now on. */
  ask() {
    const digits = [...$("question").value].filter((letter) => /\d/.test(letter)).join("");
    if (digits.length === 0) return write($("ask-about"), "Type some digits, for instance 4 2 7 1 9 3 0 5.");
    this.question = { digits, prompt: `${digits}>`, solution: [...digits].sort().join("") };
    if (!this.worker) this.begin(undefined, true);
    else this.tell({ do: "ask", question: this.asked() });
  }

  /** The visitor's prompt as the worker wants it, if there is one. */
  asked() {
    return this.question && { prompt: this.question.prompt, drawn: DRAWN };
  }

  answer({ prompt, answers, why }) {
    if (prompt !== this.question?.prompt) return;
    if (why) return write($("ask-about"), why);
    const { digits, solution } = this.question;
    const length = $("text-length").valueAsNumber;
    write($("ask-about"), digits.length === length ? "" : `It learns from ${length} digits; ${digits.length} are new to it.`);
    const row = (one, i) => make("li", {}, mark(one.completion === solution), shaded(one),
      make("span", { className: "hint", textContent: i === 0 ? "its surest" : "drawn" }));
    $("answers").replaceChildren(...answers.map(row));
  }

  /** Follows a run of the program, whose curves these are. */
  follow(curves, { run, task }) {
    this.live = curves;
    this.task = task;
    write($("text-source-live"), run);
    $("text-source").hidden = false;
    const settings = async () => write($("text-toml"), await (await fetch("run/files/config.toml")).text());
    settings().catch(() => {}); // that the program cannot be reached is said elsewhere
    this.show("live");
  }

  /** The run that is watched has news. */
  news() {
    const last = this.live.runs.get("run")?.last;
    if (this.known > (last?.iteration ?? -1)) {
      // Another run is in its place, or it goes on from before.
      this.known = undefined;
      this.completions.clear("live");
    }
    if (this.source === "live") {
      if (last && !last.fit) this.draw(Object.keys(last.rewards));
      this.touch();
    }
    if (last && !last.fit && last.iteration !== this.known) this.fetch();
  }

  /** Fetches completions of the run, of an iteration or the newest; a request at a time, and not too often. */
  async fetch(iteration) {
    if (!this.live) return;
    this.next = { iteration };
    if (this.fetching) return;
    this.fetching = true;
    while (this.next) {
      const { iteration, tries = 0 } = this.next;
      this.next = undefined;
      const newest = this.live.runs.get("run")?.last.iteration;
      try {
        const answer = await fetch(`run/completions.jsonl${iteration === undefined ? "" : `?iteration=${iteration}`}`);
        if (answer.ok) this.completions.add("live", (await answer.text()).split("\n").filter(Boolean).map((line) => JSON.parse(line)));
        // A record comes a moment before the completions that it is of.
        if (iteration === undefined && this.completions.newest("live") >= newest) this.known = newest;
        else if (iteration === undefined && tries < TRIES) this.next ??= { tries: tries + 1 };
      } catch {
        // That the program cannot be reached is said elsewhere; the next record asks again.
      }
      await new Promise((done) => setTimeout(done, BETWEEN));
    }
    this.fetching = false;
  }

  /** Shows what is trained in this tab ("here") or the run that is watched ("live"). */
  show(source) {
    this.source = source;
    for (const input of document.getElementsByName("text-source")) input.checked = input.value === source;
    this.curves = source === "live" ? this.live : this.here;
    this.charts.forEach((charts) => charts.show(this.curves));
    this.completions.show(source);
    this.renew();
  }

  renew() {
    const { state, last } = this;
    const live = this.source === "live";
    for (const id of ["text-settings", "ask"]) $(id).hidden = live;
    for (const id of ["text-run", "text-about-live"]) $(id).hidden = !live;
    $("text-about").hidden = live;
    write($("text-title"), live ? `A language model learns ${this.task}` : "A language model learns to sort");
    const worry = [...this.curves.runs.values()][0]?.worry;
    $("text-warning").hidden = !worry;
    write($("text-warning"), worry ? `Iteration ${worry.iteration}: ${worry.warning}` : "");
    write($("text-start"), this.busy() ? "Train anew" : "Train");
    $("text-start").disabled = state === "starting";
    $("text-start").classList.toggle("strong", !this.busy());
    $("text-pause").disabled = !["running", "paused"].includes(state);
    write($("text-pause"), BUTTON[state] ?? "Pause");
    $("text-reset").disabled = state === "idle";
    $("text-save").disabled = !this.about;
    const { end } = this.curves;
    const iteration = this.curves.runs.size > 0 ? [...this.curves.runs.values()][0].last.iteration : 0;
    $("text").classList.toggle("empty", iteration === 0 && this.completions.all.length === 0);
    $("text-csv").hidden = $("text-progress").hidden = iteration === 0;
    $("text-progress").value = end ? iteration / end : 0;
    const words = {
      idle: "Not started", refused: "Stopped: see what is wrong", starting: "Getting ready",
      running: last?.fit ? "Imitating solutions" : "Learning by rewards", pausing: "Pausing", paused: last ? "Paused" : "Not trained yet", done: "Finished",
    }[state];
    const exact = this.here.evaluations("part exact").at(-1);
    const rest = [
      last && `iteration ${last.iteration} of ${this.here.end}`,
      Number.isFinite(exact) && `${fixed(100 * exact, 0)} % of new prompts right`,
      state === "running" && last && `${short(this.rate(last))} tokens a second`,
      state === "running" && this.left(),
    ].filter(Boolean).join(", ");
    write($("text-state"), live ? `Iteration ${iteration} of ${end}` : rest ? `${words}: ${rest}` : words);
    if (last && this.about) write($("tell-training"), `CPU, in WebAssembly, ${short(this.about.parameters)} parameters, ${short(this.rate(last))} tokens a second`);
  }

  /** Tokens a second that are learnt from: of completions, or of solutions. */
  rate({ steps_per_second }) {
    return steps_per_second;
  }

  /** How long it still takes, by the pace of the last iterations. */
  left() {
    const [first, last] = [this.pace[0], this.pace.at(-1)];
    if (!last || last.iteration <= first.iteration) return "";
    const seconds = ((last.at - first.at) / (last.iteration - first.iteration)) * (this.here.end - last.iteration) / 1000;
    return seconds < 90 ? `${Math.ceil(seconds)} s left` : `${Math.round(seconds / 60)} min left`;
  }
}
