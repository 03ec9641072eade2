// Training on the page: the form, the buttons, the charts, and the agents that come of it.

import { Policy } from "./watch.js";
import { $, make, write, say, fixed, short, megabytes, sentence } from "./dom.js";
import { Settings } from "./settings.js";
import { Training } from "./training.js";
import { Curves } from "./curves.js";
import { writeToml } from "./toml.js";
import { Charts } from "./charts.js";
import { inFrame, pace } from "./frames.js";
import { keepLast, keepRun, keptRun, forgetRun, onlyHere, download } from "./keep.js";

/** Milliseconds between two times that the policy is kept in the browser's storage. */
const KEEP = 10_000;

/** Milliseconds between two times that the run is kept there. */
const KEEP_RUN = 2_000;

/** And between two times that its words are renewed. */
const RENEW = 100;

/** And between two frames while a GPU that is software trains, too. */
const SPARING = 90;
/** And where workers share a run, all of whom wait for the one whose processor the page takes: a game's step. */
const SHARED = 100;

/** What the games of a person are learnt with: so many iterations of so many steps, of so many moves each. */
const IMITATION = { iterations: 20, steps: 32, batch: 64 };

const BUTTON = { starting: "Starting", running: "Pause training", pausing: "Pausing", paused: "Go on training" };

export class Lab {
  /** `changed()` is called when a setting changes, `imitated()` when the games of a person have been learnt. */
  constructor(games, agents, changed, imitated) {
    Object.assign(this, { games, agents, imitated });
    this.settings = new Settings(changed);
    this.here = new Curves();
    this.charts = new Charts(this.here);
    this.training = new Training({
      state: (name) => {
        if (name === "paused" || name === "done") this.keep();
        if (name === "paused" || name === "running") this.keepRun(true);
        const imitated = name === "done" && this.run?.wanted[0].games;
        if (name === "done" || name === "refused") this.forgetRun();
        this.renew();
        if (imitated && this.failures.length === 0) this.imitated();
        if (name === "done") say(`${this.words(name)}.`, 8);
      },
      record: (seed, record) => this.record(seed, record),
      policy: (seed, file, iteration) => this.policy(seed, file, iteration),
      saved: (seed, saved) => this.saved(seed, saved),
      about: (seed, about) => { this.about = about; },
      memory: (bytes) => { this.memory = bytes; },
      failed: (seed, iteration, why) => this.failed(seed, iteration, why),
      refused: (why) => this.refused(why),
      noWall: (why) => { $("device-wall").open = false; say(`The games on the device cannot be shown: ${why}`); },
    });
    $("settings").addEventListener("submit", (event) => { event.preventDefault(); this.start(); });
    $("pause").addEventListener("click", () => this.toggle());
    $("train-here").addEventListener("click", () => (this.busy() ? this.toggle() : this.start()));
    $("reset").addEventListener("click", () => this.reset());
    $("csv").addEventListener("click", () => download(`${this.source === "live" ? "run" : this.trained}-curves.csv`, new TextEncoder().encode(this.shownCurves().csv())));
    $("source").addEventListener("change", (event) => this.show(event.target.value));
    $("device-wall").addEventListener("toggle", () => this.wall());
    $("device-games").addEventListener("input", () => this.wall());
    // Where there is room, what will be seen is explained until it is there.
    $("words").open = !matchMedia("(max-width: 56rem)").matches;
    this.renew();
  }

  /** Another game is on the stage: its settings come into the form, as the visitor left them. */
  game(name) {
    this.staged = name;
    if (this.settings.game !== name) this.fill(name);
    this.renew();
  }

  /** The name of a game for people. */
  title(name) {
    return this.games.find((game) => game.name === name)?.title ?? name;
  }

  /** Puts a game's defaults into the form, with what a link says laid over. */
  fill(name, link) {
    this.settings.fill(name, this.games.find((game) => game.name === name).settings, link);
    write($("settings-of"), `Settings for ${this.title(name)}`);
  }

  busy() {
    return ["starting", "running", "pausing", "paused"].includes(this.training.state);
  }

  start() {
    this.trouble("");
    const wanted = this.settings.read();
    if (!wanted) return this.trouble("Some settings are out of their limits.");
    this.begin({ game: this.settings.game, way: this.settings.way.value, wanted, saved: {}, records: {} });
    onlyHere().then((only) => { this.alone = only; });
  }

  /** Learns from the games of a person, a file, instead of playing; `about` is what they are of. */
  imitate({ env, settings }, file) {
    this.trouble("");
    const own = Object.fromEntries(Object.entries(settings).map(([key, value]) => [`${env}.${key}`, value]));
    const [seed, iterations] = [1, IMITATION.iterations];
    const text = writeToml({ env, seed, iterations, "update.num_minibatches": IMITATION.steps, "data.path": "your games", "data.batch_size": IMITATION.batch, ...own });
    this.begin({ game: env, way: "CPU", wanted: [{ seed, iterations, text, games: file }], saved: {}, records: {} });
    onlyHere().then((only) => { this.alone = only; });
  }

  /** Trains, from the beginning or from where a run was left. */
  begin(run, paused = false) {
    $("words").open = false;
    this.forget();
    this.run = run;
    this.trained = run.game;
    this.here.end = run.wanted[0].iterations;
    this.followed = `here ${run.wanted[0].seed}`;
    this.met = false;
    this.several = run.wanted.length > 1;
    for (const { seed } of run.wanted) for (const record of run.records[seed] ?? []) this.here.add(seed, record);
    this.show("here");
    const wanted = run.wanted.map((one) => ({ ...one, saved: run.saved[one.seed] }));
    this.training.start(wanted, run.way, paused);
  }

  /** Goes on with a training that a reload or a closed tab has left. */
  async resume() {
    const run = await keptRun().catch(() => undefined); // that nothing is kept has been said
    if (!run || this.busy() || !this.games.some(({ name }) => name === run.game) || !(await onlyHere())) return;
    this.alone = true;
    this.begin(run, run.paused);
    say(`Training ${this.title(run.game)} goes on from where it was left.`, 6);
  }

  saved(seed, saved) {
    if (!this.run) return;
    this.run.saved[seed] = saved;
    this.run.records[seed] = (this.all.get(seed) ?? []).filter(({ iteration }) => iteration <= saved.iteration);
    this.keepRun();
  }

  /** Keeps the run in the browser's storage, from which a reload goes on. */
  keepRun(now = false) {
    if (!this.run || this.alone === false || Object.keys(this.run.saved).length === 0) return;
    if (!now && performance.now() - (this.runKept ?? -Infinity) < KEEP_RUN) return;
    this.runKept = performance.now();
    const way = this.about?.api === "WebGPU" ? "WebGPU" : "CPU";
    const paused = ["paused", "pausing"].includes(this.training.state);
    keepRun({ ...this.run, way, paused }).catch((error) => this.cannotKeep(error));
  }

  forgetRun() {
    if (this.run && this.alone !== false) forgetRun().catch(() => {});
    this.run = undefined;
  }

  toggle() {
    if (this.training.state === "running") this.training.pause();
    else if (this.training.state === "paused") {
      this.pace = [];
      this.training.goOn();
    }
  }

  reset() {
    this.training.reset();
    this.forgetRun();
    this.trained = undefined;
    this.forget();
    this.trouble("");
    this.game(this.staged);
    this.renew();
  }

  /** Puts away what came of the last training, but for the agent that is on the stage. */
  forget() {
    this.here.clear();
    this.all = new Map();
    this.pace = [];
    this.failures = [];
    this.keptAt = performance.now();
    this.about = this.memory = this.latest = undefined;
    for (const id of [...this.agents.all.keys()]) {
      if (id.startsWith("here ") && id !== this.agents.chosen) this.agents.withdraw(id);
    }
    $("device-wall").open = false;
    this.charts.touch();
  }

  record(seed, record) {
    this.here.add(seed, record);
    if (!this.all.has(seed)) this.all.set(seed, [...(this.run?.records[seed] ?? [])]);
    this.all.get(seed).push(record);
    this.newest = record;
    this.pace.push({ at: performance.now(), done: Math.min(...this.here.counted().map((run) => run.last.iteration)) });
    if (this.pace.length > 60) this.pace.shift();
    if (this.source === "here") this.charts.touch();
    this.later();
  }

  policy(seed, file, iteration) {
    const id = `here ${seed}`;
    if (this.here.references.length === 0) {
      const policy = new Policy(file);
      this.here.references = JSON.parse(policy.about()).references;
      policy.free();
    }
    this.agents.offer(id, `Trained here${this.several ? `, seed ${seed}` : ""}`, file);
    if (id === this.followed && !this.met) {
      this.met = true;
      this.agents.choose(id);
    }
    if (id !== this.followed || iteration === 0) return;
    this.latest = file;
    if (performance.now() - this.keptAt > KEEP) this.keep();
  }

  /** Keeps the newest policy of the seed that is followed in the browser's storage. */
  keep() {
    if (!this.latest) return;
    this.keptAt = performance.now();
    keepLast(this.latest).catch((error) => this.cannotKeep(error));
    this.latest = undefined;
  }

  cannotKeep(error) {
    if (this.refusedStorage) return;
    this.refusedStorage = true;
    say(`This browser keeps nothing for the page (${sentence(error)}). Save the policy as a file to have it later.`);
  }

  shownCurves() {
    return this.source === "live" ? this.live : this.here;
  }

  failed(seed, iteration, why) {
    const text = `Seed ${seed} stopped after iteration ${iteration}: ${why}`;
    this.failures.push(seed);
    this.here.fail(seed);
    this.trouble(text);
    say(text);
    this.renew();
  }

  refused(why) {
    this.settings.blame(why);
    this.trouble(why);
    this.renew();
  }

  trouble(text) {
    write($("trouble"), text);
    $("trouble").hidden = text === "";
  }

  /** Shows the curves of the training in this tab ("here") or of the run that is watched ("live"). */
  show(source) {
    this.source = source;
    for (const input of document.getElementsByName("source")) input.checked = input.value === source;
    this.charts.show(source === "live" ? this.live : this.here);
    this.renew();
  }

  /** The curves of a run that is watched. */
  follow(curves, name, settings) {
    this.live = curves;
    this.runSettings = settings;
    write($("source-live"), name);
    $("source").hidden = false;
    this.show("live");
  }

  /** The run that is watched has news. */
  news() {
    if (this.source !== "live") return;
    this.charts.touch();
    this.later();
  }

  /** Renews the words soon. */
  later() {
    if (this.waiting) return;
    this.waiting = true;
    setTimeout(() => inFrame(() => { this.waiting = false; this.renew(); }), RENEW);
  }

  renew() {
    const { state } = this.training;
    pace(state !== "running" ? 0 : this.about?.software ? SPARING : this.about?.members > 1 ? SHARED : 0);
    $("start").disabled = state === "starting";
    const live = this.source === "live";
    $("settings").hidden = live;
    $("run-settings").hidden = !live;
    const other = this.trained !== this.settings.game;
    write($("start"), this.busy() && !other ? "Train anew" : this.busy() ? "Train this instead" : "Train");
    $("pause").disabled = !["running", "paused"].includes(state);
    write($("pause"), state === "paused" ? "Go on" : "Pause");
    $("reset").disabled = state === "idle";
    write($("train-here"), BUTTON[state] ? `${BUTTON[state]}${other ? ` ${this.title(this.trained)}` : ""}` : "Train a fresh agent");
    $("train-here").hidden = live;
    $("train-here").disabled = ["starting", "pausing"].includes(state);
    const curves = this.shownCurves();
    const runs = curves.counted();
    const iteration = Math.min(...runs.map((run) => run.last.iteration));
    $("progress").value = runs.length > 0 && curves.end ? iteration / curves.end : 0;
    $("progress").hidden = runs.length === 0;
    $("csv").hidden = runs.length === 0;
    write($("curves-of"), runs.length > 0 && !live ? `Curves of ${this.title(this.trained)}` : "");
    this.charts.name(live ? [] : [...curves.runs.keys()]);
    $("lab").classList.toggle("empty", runs.length === 0);
    const words = this.words(state);
    write($("state"), this.source === "live" ? `Iteration ${runs.length > 0 ? iteration : 0} of ${curves.end}` : words);
    write($("state-here"), this.trained ? `${words}` : "");
    $("state-here").hidden = state === "idle";
    const device = this.about;
    $("device-wall").hidden = !(["running", "pausing", "paused", "done"].includes(state) && device?.api === "WebGPU");
    write($("tell-training"), device
      ? [...(device.api === "WebGPU" ? [device.api, device.device] : [device.members > 1 ? `CPU, ${device.members} workers in WebAssembly` : "CPU, in WebAssembly"]), this.newest && `${short(this.newest.steps_per_second)} steps a second`].filter(Boolean).join(", ") : "nothing yet");
    this.trainingMemory = [
      this.newest?.memory.in_use && `${megabytes(this.newest.memory.in_use)} of the training device`,
      this.memory && `${megabytes(this.memory)} of the worker`,
    ].filter(Boolean);
  }

  words(state) {
    const runs = this.here.counted();
    const at = runs.length > 0
      ? `iteration ${Math.min(...runs.map((run) => run.last.iteration))} of ${this.here.end}` : "the first iteration";
    const scores = runs.map((run) => run.lines.score?.at(-1)?.y).filter(Number.isFinite);
    const greedy = this.here.evaluations();
    const mean = (values) => fixed(values.reduce((a, b) => a + b, 0) / values.length);
    const result = [scores.length > 0 && `score ${mean(scores)}`, greedy.length > 0 && `greedy ${mean(greedy)}`].filter(Boolean);
    const rest = [at, ...result].join(", ");
    const game = this.trained;
    const left = this.left();
    return {
      idle: "Not started", refused: "Not started: see what is wrong", starting: `Getting ready to train ${game}`,
      running: `Training ${game}: ${rest}${left ? `, ${left}` : ""}`, pausing: `Pausing ${game} after this iteration: ${rest}`, paused: `Paused ${game}: ${rest}`,
      done: `${this.failures?.length > 0 ? "Stopped" : "Finished"} ${game}: ${rest}`,
    }[state];
  }

  /** How long it still takes, by the pace of the last iterations. */
  left() {
    const [first, last] = [this.pace?.[0], this.pace?.at(-1)];
    if (!last || last.done <= first.done) return "";
    const seconds = ((last.at - first.at) / (last.done - first.done)) * (this.here.end - last.done) / 1000;
    return seconds < 90 ? `${Math.ceil(seconds)} s left` : `${Math.round(seconds / 60)} min left`;
  }

  /** Draws games from the device's memory as long as that is unfolded. */
  wall() {
    const games = 2 ** $("device-games").valueAsNumber;
    write($("device-games-out"), `${games}`);
    $("device-games").ariaValueText = `${games}`;
    $("device-canvas").replaceChildren();
    if (!$("device-wall").open || $("device-wall").hidden) return this.training.endWall();
    const side = Math.round(Math.min(640, $("device-wall").clientWidth) * window.devicePixelRatio);
    const canvas = make("canvas", { width: side, height: Math.round(side * 0.75), role: "img", ariaLabel: `${games} games on the training device` });
    $("device-canvas").append(canvas);
    this.training.showWall(canvas, games, matchMedia("(prefers-reduced-motion: reduce)").matches);
  }
}
