// Text: a language model that learns a task, in this tab or in a watched run.

import { $, make, tick, setText, showNotice, announce, setEnabled, formatFixed, sentence, formatShort } from "./dom.js";
import { Curves, TEXT_CURVES } from "./curves.js";
import { Charts, TEXT_CHARTS, moreTextCharts } from "./charts.js";
import { Completions, shadesLegend, verdictMark, shadedText } from "./completions.js";
import { BUTTON_LABELS, Control, DEFAULTS_RESTORED, resumedMessage } from "./control.js";
import { drawInFrame } from "./frames.js";
import { download, readBytes } from "./keep.js";
import { watchedProgress } from "./live.js";
import { writeToml } from "./toml.js";

/** The model: small enough to learn in front of one's eyes. */
const MODEL = { hidden_size: 64, num_layers: 2, num_heads: 4, num_kv_heads: 2, intermediate_size: 192, context: 64 };
/** Settings without a field. */
const FIXED_SETTINGS = { "checkpoint.eval_every": 10, "checkpoint.eval_episodes": 64, "generation.slots": 128, "fit.learning_rate": 0.002 };

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
const NUM_SAMPLES = 4;
/** Milliseconds between two requests for completions. */
const REQUEST_MS = 1000;

/** The longest prompt that fits the context with its answer: as many digits, and a token more for each. */
const MAX_DIGITS = MODEL.context / 2 - 1;

/** The tasks that are not named as they are in settings: what is learnt, and the name on the tab. */
const TASK_NAMES = { sort: ["to sort", "sort"], data: ["a task of your own", "own task"] };

/** The advice in a warning: settings that the form has not. */
const ADVICE_PATTERN = /: [^:]* may help\./g;

/** The name of the one run. */
const RUN_NAME = "here";

export class TextLab extends Control {
  /** `onOpen(isOn)` is called when the page shows text or stops showing it. */
  constructor(onOpen) {
    super({ module: "text", product: "model", store: "text", trouble: "text-trouble", ownCurves: new Curves(TEXT_CURVES), on: {
      about: (_, about) => this.setAbout(about),
      answers: (message) => this.showAnswers(message),
      file: (bytes, why) => (bytes ? download("sort.safetensors", bytes) : showNotice(`The model cannot be saved: ${why}`)),
    } });
    this.onOpen = onOpen;
    this.onFrame = () => this.showState();
    this.isOn = false;
    this.waitingRequests = new Map(); // requests for completions that wait, by kind
    this.curves = this.ownCurves;
    this.source = "here";
    this.completions = new Completions($("completions"), $("filter"), (iteration) => this.fetchCompletions(iteration));
    for (const { id, label, min, max, step, value } of FIELDS) {
      const input = make("input", { type: "number", id: `text-${id}`, required: true, min, max, step, value });
      $("text-fields").append(make("label", { htmlFor: input.id, textContent: label }, input));
    }
    $("shades").append(shadesLegend());
    this.drawCharts([]);
    this.completions.show(RUN_NAME);
    $("text-settings").addEventListener("submit", (event) => { event.preventDefault(); this.start(); });
    this.guardEnter($("text-settings"), $("text-start"));
    $("text-pause").addEventListener("click", () => this.togglePause());
    $("text-defaults").addEventListener("click", () => this.restoreDefaults());
    $("text-reset").addEventListener("click", () => this.reset());
    $("text-save").addEventListener("click", () => this.training.post({ do: "file" }));
    $("text-load").addEventListener("click", () => $("text-files").click());
    $("text-files").addEventListener("change", async () => {
      await this.load($("text-files").files);
      $("text-files").value = "";
    });
    $("text-csv").addEventListener("click", () => download("text-curves.csv", this.curves.csv()));
    $("ask").addEventListener("submit", (event) => { event.preventDefault(); this.ask(); });
    $("text-source").addEventListener("change", (event) => this.show(event.target.value));
    this.showState();
  }

  /** Shows text, or games again. */
  open(isOn) {
    if (isOn === this.isOn) return;
    this.isOn = isOn;
    document.body.classList.toggle("text", isOn);
    $("text").hidden = !isOn;
    this.onOpen(isOn);
    this.charts.forEach((charts) => charts.touch());
    this.completions.drawSoon();
    this.beginFirst();
  }

  /** Trains when the tab is first opened, once it is known that there is no run to resume or to watch, here or in
      another tab of the browser. */
  async beginFirst() {
    if (!this.isOn || !this.hasSearchEnded || this.hasBegun || this.watchedCurves || this.state !== "idle") return;
    this.hasBegun = true;
    if (!(await this.holdLock())) return showNotice("Another tab is training the language model. Press Train to train one here, too.");
    if (this.state === "idle") this.start();
  }

  /** Called once kept and watched runs have been looked for. */
  endSearch() {
    this.hasSearchEnded = true;
    this.beginFirst();
  }

  /** Trains the model in a file further; returns whether it does. A file without one leaves everything as it is. */
  async load([file]) {
    try {
      const run = this.read(await readBytes(file));
      if (!run) return false;
      await this.training.check(run.seedRuns[0]);
      this.hasBegun = true; // the first training is this one
      const hasBegun = await this.train(run);
      if (hasBegun) this.loadedFileName = file.name;
      if (hasBegun === false) showNotice(`${file.name} is not loaded: a training that another tab has left goes on. To replace it, load the file again.`);
      return true;
    } catch (error) {
      showNotice(`${file.name}: ${sentence(error)}`);
      return false;
    }
  }

  /** Draws the charts, with one for each part of the reward. */
  drawCharts(parts) {
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

  /** Begins a new run, unless another tab has left one, which continues instead; returns whether it has begun,
      undefined if neither does. */
  async train(run, paused = false) {
    if (this.preparing || !(await this.prepare("text"))) return undefined;
    if (this.leftRun) {
      this.continueLeftRun(paused);
      return false;
    }
    this.beginNew(run, paused);
    return true;
  }

  /** Remembers the run that a reload or another tab has left. */
  adopt(leftRuns) {
    this.leftRun = leftRuns.find(({ settings }) => settings);
  }

  /** The run of the form, with a fresh model or the one in a file; undefined, with the reasons beside the fields, if
      settings are out of range. */
  read(file) {
    $("text-settings").querySelector("details").open ||= !$("text-settings").checkValidity();
    if (!$("text-settings").reportValidity()) return undefined;
    const settings = Object.fromEntries(FIELDS.map(({ id, path }) => [path, $(`text-${id}`).valueAsNumber]));
    const model = Object.fromEntries(Object.entries(MODEL).map(([key, value]) => [`model.${key}`, value]));
    const text = writeToml({ task: "sort", ...settings, ...model, ...FIXED_SETTINGS });
    return { settings, device: "CPU", seedRuns: [{ seed: RUN_NAME, iterations: settings.iterations, text, file }] };
  }

  /** Puts back the defaults of the form. */
  restoreDefaults() {
    for (const { id, value } of FIELDS) $(`text-${id}`).value = value;
    announce(DEFAULTS_RESTORED);
  }

  /** Resumes a training that a reload or a closed tab has left. */
  async resume() {
    if ((await this.storedRuns()).length > 0 && (await this.holdLock()) && this.leftRun && !this.isBusy()) {
      const { source } = this;
      this.continueLeftRun(this.leftRun.paused);
      if (source === "live") this.show(source); // the page was opened for a watched run
    }
  }

  /** Continues the run that was left. */
  continueLeftRun(paused) {
    const run = this.leftRun;
    this.leftRun = undefined;
    for (const { id, path } of FIELDS) $(`text-${id}`).value = run.settings[path];
    this.begin(run, paused);
    this.newestRecord = run.records[RUN_NAME]?.at(-1);
    this.touch();
    announce(resumedMessage("the language model", paused));
  }

  begin(run, paused) {
    this.numDigits = run.settings["sort.length"];
    super.begin(run, paused, this.workerQuestion());
    this.show("here");
  }

  /** The task and the model of a run that has started. */
  setAbout(about) {
    this.about = about;
    this.drawCharts(about.parts);
    if (this.loadedFileName) announce(`Loaded ${this.loadedFileName}; training continues by GRPO alone.`);
  }

  clear() {
    super.clear();
    this.loadedFileName = undefined;
    this.completions.clear(RUN_NAME);
  }

  reset() {
    super.reset();
    $("answers").replaceChildren();
    this.touch();
  }

  addFailure(seed, iteration, why) {
    super.addFailure(seed);
    this.showTrouble(why);
    this.showState();
  }

  addRecord(seed, record, completions) {
    super.addRecord(seed, record);
    this.completions.add(RUN_NAME, completions);
    this.touch();
  }

  /** Redraws the charts and the words soon. */
  touch() {
    this.charts.forEach((charts) => charts.touch());
    this.showStateSoon();
  }

  showStateSoon() {
    drawInFrame(this.onFrame);
  }

  /** Sends the visitor's prompt, which the model answers now and after each iteration. */
  ask() {
    // Answers to the last prompt would take the place of a reason to refuse this one.
    this.question = undefined;
    $("answers").replaceChildren();
    const digits = [...$("question").value].filter((letter) => /\d/.test(letter)).join("");
    if (digits.length === 0) return setText($("ask-about"), "Type some digits, such as 4 2 7 1 9.");
    if (digits.length > MAX_DIGITS) return setText($("ask-about"), `Type at most ${MAX_DIGITS} digits.`);
    // A fresh model would take the place of the kept one.
    if (this.state === "refused" && this.isKept()) return setText($("ask-about"), "Reload the page to resume the training, then ask.");
    this.question = { digits, prompt: `${digits}>`, solution: [...digits].sort().join("") };
    if (!this.training.workers) this.start(true);
    else this.training.post({ do: "ask", question: this.workerQuestion() });
  }

  /** The visitor's prompt for the worker, if there is one. */
  workerQuestion() {
    return this.question && { prompt: this.question.prompt, numSamples: NUM_SAMPLES };
  }

  showAnswers({ prompt, answers, why }) {
    if (prompt !== this.question?.prompt) return;
    if (why) return setText($("ask-about"), why);
    const { digits, solution } = this.question;
    setText($("ask-about"), digits.length === this.numDigits ? "" : `It is trained on ${this.numDigits} digits; ${digits.length} may not work.`);
    const row = (completion, i) => make("li", {}, verdictMark(completion.completion === solution), shadedText(completion),
      make("span", { className: "hint", textContent: i === 0 ? "most likely" : "sampled" }));
    $("answers").replaceChildren(...answers.map(row));
  }

  /** Shows the curves of a run of the program. */
  follow(curves) {
    this.watchedCurves = curves;
    $("text-source").hidden = false;
    this.show("live");
  }

  /** Redraws the curves of the watched run, and fetches its completions. */
  showNews() {
    const lastRecord = this.watchedCurves.runs.get("run")?.lastRecord;
    this.completions.highestScores.set("live", this.watchedCurves.highestScore);
    if (!this.watchedCurves.isReplaying && this.furthestIteration > (lastRecord?.iteration ?? -1)) {
      // Another run took its place, or it was resumed from an earlier checkpoint.
      this.fetchedIteration = this.furthestIteration = undefined;
      this.completions.clear("live");
    }
    if (this.source === "live") {
      const parts = Object.keys(lastRecord?.rewards ?? {}); // none if the verifier judged no completion, or in SFT
      if (parts.length > 0) this.drawCharts(parts);
      this.touch();
    }
    if (lastRecord && !lastRecord.is_sft && lastRecord.iteration !== this.fetchedIteration) this.fetchCompletions();
  }

  /** Fetches completions of an iteration, or the newest, one request at a time: of those waiting, the last of each. */
  async fetchCompletions(iteration) {
    if (!this.watchedCurves) return;
    this.waitingRequests.set(iteration === undefined ? "newest" : "asked", iteration);
    if (this.isFetching) return;
    this.isFetching = true;
    while (this.waitingRequests.size > 0) {
      const [[kind, iteration]] = this.waitingRequests;
      this.waitingRequests.delete(kind);
      const newestIteration = this.watchedCurves.runs.get("run")?.lastRecord.iteration;
      try {
        const answer = await fetch(`run/completions.jsonl${iteration === undefined ? "" : `?iteration=${iteration}`}`);
        if (answer.ok) this.completions.add("live", (await answer.text()).split("\n").filter(Boolean).map((line) => JSON.parse(line)));
        // The completions of an iteration are written before its record; a run may write none.
        if (iteration === undefined) {
          this.fetchedIteration = newestIteration;
          this.furthestIteration = Math.max(newestIteration ?? -1, this.furthestIteration ?? -1);
        }
      } catch {
        // A lost connection is reported elsewhere; the next record causes another request.
      }
      await new Promise((done) => setTimeout(done, REQUEST_MS));
    }
    this.isFetching = false;
  }

  /** Shows the training in this tab ("here") or the watched run ("live"). */
  show(source) {
    this.source = source;
    tick("text-source", source);
    this.curves = source === "live" ? this.watchedCurves : this.ownCurves;
    this.charts.forEach((charts) => charts.show(this.curves));
    this.completions.show(source);
    this.showState();
  }

  /** Names what the model learns, in the title and on the tab. */
  showTask(task) {
    const [what, tabName] = TASK_NAMES[task] ?? [`the task ${task}`, task];
    setText($("text-title"), `A language model learns ${what}`);
    const tab = $("game").querySelector("input[value=sort] + span");
    if (tab) setText(tab, `Text: ${tabName}`);
  }

  /** Writes the state of the training into buttons, titles and texts. */
  showState() {
    const { state, newestRecord } = this;
    const isLive = this.source === "live";
    for (const id of ["text-settings", "ask"]) $(id).hidden = isLive;
    for (const id of ["text-run", "text-about-live"]) $(id).hidden = !isLive;
    $("text-about").hidden = isLive;
    this.showTask(isLive ? this.watchedCurves.task : "sort");
    const warningRecord = [...this.curves.runs.values()][0]?.lastWarning;
    $("text-warning").hidden = !warningRecord;
    setText($("text-warning"), warningRecord ? `Iteration ${warningRecord.iteration}: ${isLive ? warningRecord.warning : warningRecord.warning.replace(ADVICE_PATTERN, ".")}` : "");
    setText($("text-start"), this.wouldReplace() ? "Restart" : "Train");
    setEnabled($("text-start"), state !== "starting");
    $("text-start").classList.toggle("strong", !this.isBusy());
    setEnabled($("text-pause"), ["running", "paused"].includes(state));
    setText($("text-pause"), BUTTON_LABELS[state] ?? "Pause");
    setEnabled($("text-reset"), state !== "idle");
    setEnabled($("text-save"), this.about && state !== "refused"); // else its worker is gone
    const { end } = this.curves;
    const iteration = this.curves.runs.size > 0 ? [...this.curves.runs.values()][0].lastRecord.iteration : 0;
    $("text-csv").hidden = iteration === 0;
    $("text-progress").value = end ? iteration / end : 0;
    setText($("text-state"), isLive ? this.watchedLine(iteration) : this.stateLine(state));
    if (isLive) setText($("stat-training"), this.watchedCurves.trainedOn);
    else if (newestRecord && this.about) setText($("stat-training"), `CPU, in WebAssembly, ${formatShort(this.about.parameters)} parameters, ${formatShort(newestRecord.steps_per_second)} tokens a second`);
  }

  /** The progress of the watched run in one line. */
  watchedLine(iteration) {
    const phase = [...this.curves.runs.values()][0]?.lastRecord.is_sft ? ": SFT, imitating solutions" : "";
    return `${watchedProgress(this.curves, iteration)}${phase}`;
  }

  /** The state of the training in this tab in one line. */
  stateLine(state) {
    const { newestRecord } = this;
    const words = {
      idle: "Not started", refused: "Stopped: see what is wrong", starting: "Getting ready",
      running: newestRecord?.is_sft ? "SFT, imitating solutions" : "GRPO, learning from rewards", pausing: "Pausing", paused: newestRecord ? "Paused" : "Not trained yet",
      done: this.failures.length > 0 ? "Stopped: see what is wrong" : "Finished",
    }[state];
    const rightShare = this.ownCurves.evaluations("part exact").at(-1);
    const details = [
      newestRecord && `iteration ${newestRecord.iteration} of ${this.ownCurves.end}`,
      Number.isFinite(rightShare) && `${formatFixed(100 * rightShare, 0)} % of held-out prompts right`,
      state === "running" && newestRecord && `${formatShort(newestRecord.steps_per_second)} tokens a second`,
      state === "running" && this.remainingTime(),
    ].filter(Boolean).join(", ");
    return details ? `${words}: ${details}` : words;
  }
}
