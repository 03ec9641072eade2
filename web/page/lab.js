// Training policies on the page: the form, the buttons, the charts, and the trained agents.

import { Policy } from "./watch.js";
import { $, make, write, say, announce, enable, fixed, short, megabytes } from "./dom.js";
import { Settings } from "./settings.js";
import { BUTTON, Control, isRun, RESTORED, resuming } from "./control.js";
import { Curves } from "./curves.js";
import { progress } from "./live.js";
import { writeToml } from "./toml.js";
import { Charts } from "./charts.js";
import { inFrame, pace } from "./frames.js";
import { download, keepLast, keepRuns, keptRun } from "./keep.js";

/** Milliseconds between two times that the policy is kept in the browser's storage. */
const KEEP = 10_000;

/** Milliseconds between two updates of the texts. */
const RENEW = 100;

/** Milliseconds between two frames while a software adapter trains. */
const SOFTWARE_FRAME = 90;
/** Milliseconds between two frames while workers share a run: all of them wait for the one whose processor the page takes. */
const SHARED_FRAME = 100;

/** The name of the shelf in the browser's storage. */
const SHELF = "shelf";

/** Imitation of a person's games: iterations, optimizer steps in each, and moves in a step. */
const IMITATION = { iterations: 20, steps: 32, batch: 64 };

/** The message for a watched run of a game that the page does not have. */
const FOREIGN = "This page cannot play what the run learns; the game shown here is another.";

/** The message beside the form if some settings are out of range. */
const OUT_OF_RANGE = "Some settings are out of range.";

/** The time that training takes with the defaults, in a tab on two processors. */
const TIMES = { fruit: "10 seconds", catch: "10 seconds", cartpole: "10 seconds", breakout: "a minute" };

export class Lab extends Control {
  /** `changed()` is called when a setting changes, `imitated()` when the games of a person have been learnt. */
  constructor(games, agents, changed, imitated) {
    super({ module: "train", product: "policy", store: "run", trouble: "trouble", here: new Curves(), on: {
      policy: (seed, file, iteration) => this.policy(seed, file, iteration),
      noWall: (why) => { $("device-wall").open = false; say(`The games on the device cannot be shown: ${why}`); },
    } });
    Object.assign(this, { games, agents, imitated });
    const renewed = () => { this.changed(); changed(); };
    this.settings = new Settings(renewed);
    this.charts = new Charts(this.here);
    $("settings").addEventListener("submit", (event) => { event.preventDefault(); this.start(); });
    this.guard($("settings"), $("start"));
    $("pause").addEventListener("click", () => this.toggle());
    $("defaults").addEventListener("click", () => {
      this.settings.restore();
      renewed();
      announce(RESTORED);
    });
    $("train-here").addEventListener("click", () => this.press());
    $("reset").addEventListener("click", () => this.reset());
    $("csv").addEventListener("click", () => download(`${this.source === "live" ? "run" : this.trained}-curves.csv`, this.shownCurves().csv()));
    $("source").addEventListener("change", (event) => this.show(event.target.value));
    $("device-wall").addEventListener("toggle", () => this.wall());
    $("device-games").addEventListener("input", () => this.wall());
    this.shelf = new Map(); // by game, the runs that made room for the training of another
    this.moved = false; // whether the shelf is another than in the browser's storage
    this.renew();
  }

  /** Puts the settings of the game on the stage into the form, as the visitor left them; `references` are the scores of
      its known players. */
  game(name, references) {
    Object.assign(this, { staged: name, references });
    if (this.settings.game !== name) this.fill(name);
    if (this.here.runs.size === 0) {
      Object.assign(this.here, { references, end: this.settings.value("iterations") });
      this.charts.touch();
    }
    this.renew();
  }

  /** The title of a game. */
  title(name) {
    return this.games.find((game) => game.name === name)?.title ?? name;
  }

  /** Puts a game's defaults into the form, with the changes of a link. */
  fill(name, link) {
    this.settings.fill(this.games.find((game) => game.name === name), link);
    write($("settings-of"), `Settings for ${this.title(name)}`);
  }

  /** Whether the page trains the game on the stage: its training module knows perceptrons alone. */
  get trains() {
    return ["mlp", undefined].includes(this.settings.kind);
  }

  /** The game that is trained, or is about to be. */
  get current() {
    return this.preparing ?? this.trained;
  }

  /** Trains the game on the stage, or pauses or resumes its training. */
  async press() {
    const { staged } = this;
    if (this.busy() && this.trained === staged) return this.toggle();
    if (!this.shelf.has(staged)) {
      if (this.settings.game !== staged) this.fill(staged);
      return this.start();
    }
    if (this.preparing) return;
    if (!(await this.prepare(staged))) return;
    const run = this.shelf.get(staged);
    this.makeRoom(staged);
    this.begin(run);
    this.keepRun(true); // it has left the shelf
  }

  /** The visitor has changed a setting. */
  changed() {
    if ($("trouble").textContent === OUT_OF_RANGE && $("settings").checkValidity()) this.trouble("");
  }

  start() {
    this.trouble("");
    const wanted = this.settings.read();
    if (!wanted) {
      $("details").open = true;
      return this.trouble(OUT_OF_RANGE);
    }
    return this.train({ game: this.settings.game, way: this.settings.way.value, wanted });
  }

  /** Begins a new run, once what other tabs have left is on the shelf; a run of the same game among it is named instead. */
  async train(run) {
    const { game } = run;
    const known = this.shelf;
    if (this.preparing) return;
    if (!(await this.prepare(game))) return;
    const found = [...this.shelf].filter(([name]) => !known.has(name));
    if (found.some(([name]) => name === game)) {
      return say(`A training of ${this.title(game)} is paused at iteration ${reached(this.shelf.get(game))}, left by another tab. Press Resume to continue it, or Train again to replace it.`);
    }
    this.makeRoom(game);
    this.beginNew(run);
    for (const [, one] of found) this.tellPaused(one);
  }

  /** Learns from a person's games, a file, instead of playing; they are games of `env` with these settings. */
  imitate({ env, settings }, file) {
    const own = Object.fromEntries(Object.entries(settings).map(([key, value]) => [`${env}.${key}`, value]));
    const [seed, iterations] = [1, IMITATION.iterations];
    const text = writeToml({ env, seed, iterations, "update.num_minibatches": IMITATION.steps, "data.path": "your games", "data.batch_size": IMITATION.batch, ...own });
    return this.train({ game: env, way: "CPU", wanted: [{ seed, iterations, text, file }] });
  }

  replaces() {
    return super.replaces() || this.shelf.has(this.settings.game);
  }

  /** Shelves the run of another game, as of its last checkpoint, before a game is trained. */
  makeRoom(game) {
    const { run, trained } = this;
    if (this.shelf.delete(game)) this.moved = true;
    if (!run || trained === game || !super.replaces()) return;
    if (!run.wanted.every(({ seed }) => run.saved[seed])) return say(`The training of ${this.title(trained)} has ended: it was too short to be kept.`);
    this.shelve(this.kept());
    this.moved = true;
    this.tellPaused(this.shelf.get(trained));
  }

  /** Puts a run on the shelf, unless one of the same game there has gone further. */
  shelve(run) {
    const other = this.shelf.get(run.game);
    if (!other || reached(run) >= reached(other)) this.shelf.set(run.game, run);
  }

  /** Says that a run waits on the shelf. */
  tellPaused(run) {
    announce(`${this.title(run.game)} is paused at iteration ${reached(run)}. To continue, pick it and press Resume.`);
  }

  /** Puts a run into the browser's storage, together with the shelf if that has changed: a run that moves between them is
      never in neither. */
  async put(run) {
    if (!this.moved) return super.put(run);
    this.moved = false;
    try {
      await keepRuns({ [this.store]: run, [SHELF]: this.shelf.size > 0 ? this.shelf : undefined });
    } catch (error) {
      this.moved = true;
      this.cannotKeep(error);
      throw error;
    }
  }

  /** The runs in the browser's storage: those on the shelf, and the one that was under way. */
  async stored() {
    const shelf = await keptRun(SHELF).catch(() => undefined);
    return [...(shelf instanceof Map ? shelf.values() : []), ...(await super.stored())].filter((run) => isRun(run) && run.game);
  }

  /** Puts runs that a reload or another tab has left on the shelf. */
  adopt(left) {
    if (left.length === 0) return;
    const ours = this.shelf;
    this.shelf = new Map();
    for (const run of [...left, ...ours.values()]) this.shelve(run);
    this.moved = true;
  }

  /** Whether a run on the shelf is lost with the page. */
  loses() {
    return this.shelf.size > 0 && (!this.alone || this.refusedStorage);
  }

  /** The right to store runs is kept as long as there is one on the shelf. */
  letGo() {
    if (this.shelf.size === 0) super.letGo();
  }

  begin(run, paused = false) {
    this.trained = run.game;
    this.imitates = Boolean(run.wanted[0].file);
    this.followed = `here ${run.wanted[0].seed}`;
    this.met = false;
    this.several = run.wanted.length > 1;
    super.begin(run, paused);
    this.show("here");
  }

  /** Resumes a training that a reload or a closed tab has left, and puts others back on the shelf. */
  async resume() {
    const [[last], left] = await Promise.all([super.stored(), this.stored()]);
    // A page of a user's own game may have stored others.
    const known = left.filter((run) => this.games.some(({ name }) => name === run.game));
    if (known.length === 0 || !(await this.hold()) || this.busy()) return this.renew();
    const run = this.shelf.get(last?.game);
    if (!run || !this.games.some(({ name }) => name === run.game)) return this.renew();
    this.makeRoom(run.game);
    this.begin(run, run.paused);
    announce(resuming(this.title(run.game), run.paused));
  }

  become(name) {
    if (name === "paused" || name === "done") this.keep();
    const imitated = name === "done" && this.run?.wanted[0].file;
    super.become(name);
    if (imitated && this.failures.length === 0) this.imitated();
  }

  kept() {
    const { about, run } = this;
    // A run on the GPU that the page chose continues without one, where it is gone.
    return { ...run, way: about && about.api !== "WebGPU" ? "CPU" : run.way };
  }

  reset() {
    this.trained = undefined;
    super.reset();
    this.game(this.staged, this.references);
  }

  /** Removes the results of the last training, but for the agent on the stage. */
  clear() {
    super.clear();
    this.keptAt = performance.now();
    this.latest = undefined;
    for (const id of [...this.agents.all.keys()]) {
      if (id.startsWith("here ") && id !== this.agents.chosen) this.agents.withdraw(id);
    }
    $("device-wall").open = false;
    this.charts.touch();
  }

  record(seed, record) {
    super.record(seed, record);
    if (this.source === "here") this.charts.touch(Boolean(record.evaluation));
    this.later();
  }

  /** Makes the training of a game ready, unless the visitor saves data; an error is reported by the run that needs it. */
  warm() {
    if (!navigator.connection?.saveData && this.state === "idle") this.training.warm().catch(() => {});
  }

  policy(seed, file, iteration) {
    const id = `here ${seed}`;
    if (this.here.references.length === 0) {
      const policy = new Policy(file);
      this.here.references = JSON.parse(policy.about()).references;
      policy.free();
    }
    this.agents.offer(id, `Trained here${this.several ? `, seed ${seed}` : ""}`, file, this.several ? `Seed ${seed}` : "Your agent");
    // A visitor who has gone to another game meanwhile stays there.
    if (id === this.followed && !this.met && this.trained === this.staged) {
      this.met = true;
      this.agents.choose(id);
    }
    if (id !== this.followed || iteration === 0) return;
    this.latest = file;
    if (performance.now() - this.keptAt > KEEP) this.keep();
  }

  /** Keeps the newest policy of the first seed in the browser's storage. */
  keep() {
    if (!this.latest) return;
    this.keptAt = performance.now();
    keepLast(this.latest).catch((error) => this.cannotKeep(error));
    this.latest = undefined;
  }

  shownCurves() {
    return this.source === "live" ? this.live : this.here;
  }

  failed(seed, iteration, why) {
    const text = `Seed ${seed} stopped after iteration ${iteration}: ${why}`;
    super.failed(seed);
    this.trouble(text);
    this.renew();
  }

  refused(why) {
    this.settings.blame(why);
    super.refused(why);
  }

  /** Shows the curves of the training in this tab ("here") or of the watched run ("live"). */
  show(source) {
    this.source = source;
    for (const input of document.getElementsByName("source")) input.checked = input.value === source;
    this.charts.show(this.shownCurves());
    this.renew();
  }

  /** Shows the curves of a watched run. */
  follow(curves, name) {
    this.live = curves;
    write($("source-live"), name);
    $("source").hidden = false;
    this.show("live");
  }

  /** Redraws the curves of the watched run. */
  news() {
    if (this.source !== "live") return;
    this.charts.touch();
    this.later();
  }

  /** Updates the texts soon. */
  later() {
    if (this.waiting) return;
    this.waiting = true;
    setTimeout(() => inFrame(() => { this.waiting = false; this.renew(); }), RENEW);
  }

  /** Writes the state of the training into buttons, titles and texts. */
  renew() {
    const { state } = this;
    pace(state !== "running" ? 0 : this.about?.software ? SOFTWARE_FRAME : this.about?.members > 1 ? SHARED_FRAME : 0);
    const trains = this.trains && Boolean(this.settings.game); // which comes with the first agent
    enable($("start"), state !== "starting" && trains);
    $("imitate").hidden = !this.trains;
    if (!this.trained) this.imitates = false;
    const live = this.source === "live";
    $("settings").hidden = live;
    $("run-settings").hidden = !live;
    const other = this.trained !== this.settings.game;
    const staged = this.current === this.staged;
    write($("start"), !this.replaces() ? "Train" : super.replaces() && (other || this.imitates) ? "Train this instead" : "Train again");
    enable($("pause"), ["running", "paused"].includes(state));
    write($("pause"), state === "paused" ? "Resume" : "Pause");
    enable($("reset"), state !== "idle");
    write($("train-here"), (staged && BUTTON[state]) || (this.shelf.has(this.staged) ? "Resume" : staged && (state === "done" || this.isKept()) && !this.imitates ? "Train again" : "Train an agent"));
    $("train-here").hidden = $("reset").hidden = live;
    enable($("train-here"), trains && !(staged && ["starting", "pausing"].includes(state)));
    write($("learn-title"), live ? "Watching a run" : !this.trains ? "This agent has a memory" : this.imitates && staged ? "An agent imitates your moves" : TIMES[this.staged] ? `An agent learns this game in ${TIMES[this.staged]}` : "Watch an agent learn this game");
    const curves = this.shownCurves();
    const runs = curves.counted();
    const iteration = Math.min(...runs.map((run) => run.last.iteration));
    $("progress").value = runs.length > 0 && curves.end ? iteration / curves.end : 0;
    $("csv").hidden = runs.length === 0;
    write($("lab-title"), runs.length > 0 && !live ? `Training: ${this.title(this.trained)}` : "Training");
    this.charts.imitate(Boolean(live ? this.live.imitates : this.imitates));
    this.charts.name(live ? [] : [...curves.runs.keys()]);
    const words = this.words(state);
    const at = live && progress(curves, runs.length > 0 ? iteration : 0);
    write($("state"), live ? at : words);
    write($("state-here"), !live ? this.status(state) : curves.foreign ? `${at}. ${FOREIGN}` : at);
    const device = this.about;
    $("device-wall").hidden = !(["running", "pausing", "paused", "done"].includes(state) && device?.api === "WebGPU");
    write($("tell-training"), live ? this.live.trainedOn : device
      ? [...(device.api === "WebGPU" ? [device.api, device.device] : [device.members > 1 ? `CPU, ${device.members} workers in WebAssembly` : "CPU, in WebAssembly"]), this.newest && `${short(this.newest.steps_per_second)} steps a second`].filter(Boolean).join(", ") : "nothing yet");
    this.trainingMemory = [
      this.newest?.memory.in_use && `${megabytes(this.newest.memory.in_use)} of the training device`,
      this.memory && `${megabytes(this.memory)} of the worker`,
    ].filter(Boolean);
  }

  /** The progress of the training: iterations, score, and greedy score. */
  progress() {
    const runs = this.here.counted();
    const scores = runs.map((run) => run.lines.score?.at(-1)?.y).filter(Number.isFinite);
    const greedy = this.here.evaluations();
    const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
    return {
      iteration: runs.length > 0 ? Math.min(...runs.map((run) => run.last.iteration)) : 0,
      score: scores.length > 0 ? mean(scores) : undefined,
      greedy: greedy.length > 0 ? mean(greedy) : undefined,
    };
  }

  /** The state in one line. */
  words(state) {
    const { iteration, score, greedy } = this.progress();
    const rest = [
      iteration > 0 ? `iteration ${iteration} of ${this.here.end}` : "the first iteration",
      score !== undefined && `score ${fixed(score)}`, greedy !== undefined && `greedy ${fixed(greedy)}`,
    ].filter(Boolean).join(", ");
    const game = this.current;
    const left = this.remaining();
    return {
      idle: "Not started", refused: "Not started: see what is wrong", starting: `Getting ready to train ${game}`,
      running: `Training ${game}: ${rest}${left ? `, ${left}` : ""}`, pausing: `Pausing ${game} after this iteration: ${rest}`, paused: `Paused ${game}: ${rest}`,
      done: `${this.failures.length > 0 ? "Stopped" : "Finished"} ${game}: ${rest}`,
    }[state];
  }

  /** The state beside the stage, for a visitor who knows nothing of it. */
  status(state) {
    if (!this.trains) return `This page plays networks with a memory but does not train them. Train one in a terminal: grove train ${this.staged} --watch`;
    const { iteration, score, greedy } = this.progress();
    const optimum = this.here.references.find(([name]) => name === "optimum")?.[1];
    const best = greedy ?? score;
    const result = best === undefined ? "" : ` ${this.imitates ? "It" : "Your agent"} scores ${fixed(best)}${optimum === undefined ? "" : ` (optimum ${fixed(optimum)})`}.`;
    const at = `iteration ${iteration} of ${this.here.end}`;
    const left = this.remaining();
    const shelved = this.shelf.get(this.staged);
    const waits = shelved ? `Paused at iteration ${reached(shelved)} of ${shelved.wanted[0].iterations}.` : "";
    const of = !this.current || this.current === this.staged ? "" : `${this.title(this.current)}: `;
    const verb = this.imitates ? "Imitating you" : "Training";
    const told = {
      idle: waits ? "" : "It starts with random weights. Press the button and watch its score rise.",
      refused: "Not started.", starting: "Starting…",
      running: `${verb}, ${at}${left ? `, ${left}` : ""}.${result}`, pausing: `Pausing after this iteration.${result}`,
      paused: `Paused at ${at}.${result}`, done: `${this.failures.length > 0 ? "Stopped." : "Done."}${result}`,
    }[state];
    return [waits, of + told].filter(Boolean).join(" ");
  }

  /** Draws games from the device's memory while the wall is unfolded. */
  wall() {
    const games = 2 ** $("device-games").valueAsNumber;
    write($("device-games-out"), `${games}`);
    $("device-games").setAttribute("aria-valuetext", `${games}`);
    $("device-canvas").replaceChildren();
    if (!$("device-wall").open || $("device-wall").hidden) return this.training.endWall();
    const side = Math.round(Math.min(640, $("device-wall").clientWidth) * window.devicePixelRatio);
    const canvas = make("canvas", { width: side, height: Math.round(side * 0.75), role: "img", "aria-label": `${games} games on the training device` });
    $("device-canvas").append(canvas);
    this.training.showWall(canvas, games, matchMedia("(prefers-reduced-motion: reduce)").matches);
  }
}

/** The iteration of a run's checkpoints, the lowest of its seeds. */
const reached = ({ saved }) => Math.min(...Object.values(saved).map(({ iteration }) => iteration));
