// Training policies on the page: the form, the buttons, the charts, and the trained agents.

import { Policy } from "./watch.js";
import { $, make, write, say, announce, enable, fixed, short, megabytes } from "./dom.js";
import { Settings } from "./settings.js";
import { BUTTON_LABELS, Control, isRun, DEFAULTS_RESTORED, resumedMessage } from "./control.js";
import { Curves } from "./curves.js";
import { watchedProgress } from "./live.js";
import { writeToml } from "./toml.js";
import { Charts } from "./charts.js";
import { drawInFrame, setMinFrameMs } from "./frames.js";
import { download, keepLast, keepRuns, loadRun } from "./keep.js";

/** Milliseconds between two times that the policy is kept in the browser's storage. */
const KEEP_POLICY_MS = 10_000;

/** Milliseconds between two updates of the texts. */
const SHOW_STATE_MS = 100;

/** Milliseconds between two frames while a software adapter trains. */
const SOFTWARE_FRAME_MS = 90;
/** Milliseconds between two frames while workers share a run: all wait for the one whose processor the page takes. */
const SHARED_FRAME_MS = 100;

/** The name of the shelf in the browser's storage. */
const SHELF_NAME = "shelf";

/** Imitation of a person's games: iterations, optimizer steps in each, and moves in a step. */
const IMITATION = { iterations: 20, steps: 32, batch: 64 };

/** The message for a watched run of a game that the page does not have. */
const FOREIGN_GAME = "This page cannot play what the run learns; the game shown here is another.";

/** The message beside the form if some settings are out of range. */
const OUT_OF_RANGE = "Some settings are out of range.";

/** The time that training takes with the defaults, in a tab on two processors, for the heading; it names none for
    other games. */
const TIMES = { fruit: "10 seconds", catch: "10 seconds", cartpole: "10 seconds", breakout: "a minute" };

export class Lab extends Control {
  /** `changed()` is called when a setting changes, `imitated()` when the games of a person have been learnt. */
  constructor(games, agents, changed, imitated) {
    super({ module: "train", product: "policy", store: "run", trouble: "trouble", ownCurves: new Curves(), on: {
      policy: (seed, file, iteration) => this.addPolicy(seed, file, iteration),
      noWall: (why) => { $("device-wall").open = false; say(`The games on the device cannot be shown: ${why}`); },
    } });
    Object.assign(this, { games, agents, imitated });
    const settingsChanged = () => { this.changed(); changed(); };
    this.settings = new Settings(settingsChanged);
    this.charts = new Charts(this.ownCurves);
    $("settings").addEventListener("submit", (event) => { event.preventDefault(); this.start(); });
    this.guardEnter($("settings"), $("start"));
    $("pause").addEventListener("click", () => this.togglePause());
    $("defaults").addEventListener("click", () => {
      this.settings.restoreDefaults();
      settingsChanged();
      announce(DEFAULTS_RESTORED);
    });
    $("train-here").addEventListener("click", () => this.pressTrain());
    $("reset").addEventListener("click", () => this.reset());
    $("csv").addEventListener("click", () => download(`${this.source === "live" ? "run" : this.trainedGame}-curves.csv`, this.shownCurves().csv()));
    $("source").addEventListener("change", (event) => this.show(event.target.value));
    $("device-wall").addEventListener("toggle", () => this.showDeviceWall());
    $("device-games").addEventListener("input", () => this.showDeviceWall());
    this.shelf = new Map(); // by game, the runs that made room for the training of another
    this.shelfChanged = false; // whether the shelf is another than in the browser's storage
    this.showState();
  }

  /** Puts the settings of the game on the stage into the form, as the visitor left them; `references` are the scores of
      its known players. */
  setGame(name, references) {
    Object.assign(this, { stagedGame: name, references });
    if (this.settings.game !== name) this.fill(name);
    if (this.ownCurves.runs.size === 0) {
      Object.assign(this.ownCurves, { references, end: this.settings.value("iterations") });
      this.charts.touch();
    }
    this.showState();
  }

  /** The title of a game. */
  titleOf(name) {
    return this.games.find((game) => game.name === name)?.title ?? name;
  }

  /** Puts a game's defaults into the form, with the changes of a link. */
  fill(name, link) {
    this.settings.fill(this.games.find((game) => game.name === name), link);
    write($("settings-of"), `Settings for ${this.titleOf(name)}`);
  }

  /** Whether the page trains the game on the stage: its training module knows perceptrons alone. */
  get canTrain() {
    return ["mlp", undefined].includes(this.settings.networkKind);
  }

  /** The game that is trained, or is about to be. */
  get currentGame() {
    return this.preparing ?? this.trainedGame;
  }

  /** Trains the game on the stage, or pauses or resumes its training. */
  async pressTrain() {
    const { stagedGame } = this;
    if (this.isBusy() && this.trainedGame === stagedGame) return this.togglePause();
    if (!this.shelf.has(stagedGame)) {
      if (this.settings.game !== stagedGame) this.fill(stagedGame);
      return this.start();
    }
    if (this.preparing) return;
    if (!(await this.prepare(stagedGame))) return;
    const run = this.shelf.get(stagedGame);
    this.makeRoom(stagedGame);
    this.begin(run);
    this.keepRun(true); // it has left the shelf
  }

  /** Clears the note about values out of their ranges once none is left. */
  changed() {
    if ($("trouble").textContent === OUT_OF_RANGE && $("settings").checkValidity()) this.showTrouble("");
  }

  start() {
    this.showTrouble("");
    const wanted = this.settings.read();
    if (!wanted) {
      $("details").open = true;
      return this.showTrouble(OUT_OF_RANGE);
    }
    return this.train({ game: this.settings.game, device: this.settings.deviceInput.value, wanted });
  }

  /** Begins a new run, once what other tabs left is on the shelf; a run of the same game there is named instead. */
  async train(run) {
    const { game } = run;
    const known = this.shelf;
    if (this.preparing) return;
    if (!(await this.prepare(game))) return;
    const found = [...this.shelf].filter(([name]) => !known.has(name));
    if (found.some(([name]) => name === game)) {
      return say(`A training of ${this.titleOf(game)} is paused at iteration ${reachedIteration(this.shelf.get(game))}, left by another tab. Press Resume to continue it, or Train again to replace it.`);
    }
    this.makeRoom(game);
    this.beginNew(run);
    for (const [, one] of found) this.announcePaused(one);
  }

  /** Learns from a person's games, a file, instead of playing; they are games of `env` with these settings. */
  imitate({ env, settings }, file) {
    const own = Object.fromEntries(Object.entries(settings).map(([key, value]) => [`${env}.${key}`, value]));
    const [seed, iterations] = [1, IMITATION.iterations];
    const text = writeToml({ env, seed, iterations, "update.num_minibatches": IMITATION.steps, "data.path": "your games", "data.batch_size": IMITATION.batch, ...own });
    return this.train({ game: env, device: "CPU", wanted: [{ seed, iterations, text, file }] });
  }

  wouldReplace() {
    return super.wouldReplace() || this.shelf.has(this.settings.game);
  }

  /** Shelves the run of another game, as of its last checkpoint, before a game is trained. */
  makeRoom(game) {
    const { run, trainedGame } = this;
    if (this.shelf.delete(game)) this.shelfChanged = true;
    if (!run || trainedGame === game || !super.wouldReplace()) return;
    if (!run.wanted.every(({ seed }) => run.saved[seed])) return say(`The training of ${this.titleOf(trainedGame)} has ended: it was too short to be kept.`);
    this.shelve(this.runToKeep());
    this.shelfChanged = true;
    this.announcePaused(this.shelf.get(trainedGame));
  }

  /** Puts a run on the shelf, unless one of the same game there has gone further. */
  shelve(run) {
    const other = this.shelf.get(run.game);
    if (!other || reachedIteration(run) >= reachedIteration(other)) this.shelf.set(run.game, run);
  }

  /** Says that a run waits on the shelf. */
  announcePaused(run) {
    announce(`${this.titleOf(run.game)} is paused at iteration ${reachedIteration(run)}. To continue, pick it and press Resume.`);
  }

  /** Puts a run into the browser's storage, together with the shelf if that has changed: a run that moves between
      them is never in neither. */
  async putRun(run) {
    if (!this.shelfChanged) return super.putRun(run);
    this.shelfChanged = false;
    try {
      await keepRuns({ [this.store]: run, [SHELF_NAME]: this.shelf.size > 0 ? this.shelf : undefined });
    } catch (error) {
      this.shelfChanged = true;
      this.reportRefusal(error);
      throw error;
    }
  }

  /** The runs in the browser's storage: those on the shelf, and the one that was under way. */
  async storedRuns() {
    const shelf = await loadRun(SHELF_NAME).catch(() => undefined);
    return [...(shelf instanceof Map ? shelf.values() : []), ...(await super.storedRuns())].filter((run) => isRun(run) && run.game);
  }

  /** Puts runs that a reload or another tab has left on the shelf. */
  adopt(left) {
    if (left.length === 0) return;
    const ours = this.shelf;
    this.shelf = new Map();
    for (const run of [...left, ...ours.values()]) this.shelve(run);
    this.shelfChanged = true;
  }

  /** Whether a run on the shelf is lost with the page. */
  losesShelf() {
    return this.shelf.size > 0 && (!this.mayStore || this.refusedStorage);
  }

  /** The right to store runs is kept as long as there is one on the shelf. */
  releaseLock() {
    if (this.shelf.size === 0) super.releaseLock();
  }

  begin(run, paused = false) {
    this.trainedGame = run.game;
    this.imitates = Boolean(run.wanted[0].file);
    this.followedAgent = `here ${run.wanted[0].seed}`;
    this.agentShown = false;
    this.hasSeveralSeeds = run.wanted.length > 1;
    super.begin(run, paused);
    this.show("here");
  }

  /** Resumes a training that a reload or a closed tab has left, and puts others back on the shelf. */
  async resume() {
    const [[last], left] = await Promise.all([super.storedRuns(), this.storedRuns()]);
    // A page of a user's own game may have stored others.
    const known = left.filter((run) => this.games.some(({ name }) => name === run.game));
    if (known.length === 0 || !(await this.holdLock()) || this.isBusy()) return this.showState();
    const run = this.shelf.get(last?.game);
    if (!run || !this.games.some(({ name }) => name === run.game)) return this.showState();
    this.makeRoom(run.game);
    this.begin(run, run.paused);
    announce(resumedMessage(this.titleOf(run.game), run.paused));
  }

  enterState(name) {
    if (name === "paused" || name === "done") this.keepPolicy();
    const imitated = name === "done" && this.run?.wanted[0].file;
    super.enterState(name);
    if (imitated && this.failures.length === 0) this.imitated();
  }

  runToKeep() {
    const { about, run } = this;
    // A run on the GPU that the page chose continues without one, where it is gone.
    return { ...run, device: about && about.api !== "WebGPU" ? "CPU" : run.device };
  }

  reset() {
    this.trainedGame = undefined;
    super.reset();
    this.setGame(this.stagedGame, this.references);
  }

  /** Removes the results of the last training, but for the agent on the stage. */
  clear() {
    super.clear();
    this.keptAt = performance.now();
    this.unkeptPolicy = undefined;
    for (const id of [...this.agents.all.keys()]) {
      if (id.startsWith("here ") && id !== this.agents.chosen) this.agents.withdraw(id);
    }
    $("device-wall").open = false;
    this.charts.touch();
  }

  addRecord(seed, record) {
    super.addRecord(seed, record);
    if (this.source === "here") this.charts.touch(Boolean(record.evaluation));
    this.showStateSoon();
  }

  /** Makes the training of a game ready, unless the visitor saves data; the run that needs it reports errors. */
  warmUp() {
    if (!navigator.connection?.saveData && this.state === "idle") this.training.warmUp().catch(() => {});
  }

  addPolicy(seed, file, iteration) {
    const id = `here ${seed}`;
    if (this.ownCurves.references.length === 0) {
      const policy = new Policy(file);
      this.ownCurves.references = JSON.parse(policy.about()).references;
      policy.free();
    }
    this.agents.offer(id, `Trained here${this.hasSeveralSeeds ? `, seed ${seed}` : ""}`, file, this.hasSeveralSeeds ? `Seed ${seed}` : "Your agent");
    // A visitor who has gone to another game meanwhile stays there.
    if (id === this.followedAgent && !this.agentShown && this.trainedGame === this.stagedGame) {
      this.agentShown = true;
      this.agents.choose(id);
    }
    if (id !== this.followedAgent || iteration === 0) return;
    this.unkeptPolicy = file;
    if (performance.now() - this.keptAt > KEEP_POLICY_MS) this.keepPolicy();
  }

  /** Keeps the newest policy of the first seed in the browser's storage. */
  keepPolicy() {
    if (!this.unkeptPolicy) return;
    this.keptAt = performance.now();
    keepLast(this.unkeptPolicy).catch((error) => this.reportRefusal(error));
    this.unkeptPolicy = undefined;
  }

  shownCurves() {
    return this.source === "live" ? this.watchedCurves : this.ownCurves;
  }

  failed(seed, iteration, why) {
    const text = `Seed ${seed} stopped after iteration ${iteration}: ${why}`;
    super.failed(seed);
    this.showTrouble(text);
    this.showState();
  }

  refused(why) {
    this.settings.showError(why);
    super.refused(why);
  }

  /** Shows the curves of the training in this tab ("here") or of the watched run ("live"). */
  show(source) {
    this.source = source;
    for (const input of document.getElementsByName("source")) input.checked = input.value === source;
    this.charts.show(this.shownCurves());
    this.showState();
  }

  /** Shows the curves of a watched run. */
  follow(curves, name) {
    this.watchedCurves = curves;
    write($("source-live"), name);
    $("source").hidden = false;
    this.show("live");
  }

  /** Redraws the curves of the watched run. */
  showNews() {
    if (this.source !== "live") return;
    this.charts.touch();
    this.showStateSoon();
  }

  /** Updates the texts soon. */
  showStateSoon() {
    if (this.waiting) return;
    this.waiting = true;
    setTimeout(() => drawInFrame(() => { this.waiting = false; this.showState(); }), SHOW_STATE_MS);
  }

  /** Writes the state of the training into buttons, titles and texts. */
  showState() {
    const { state } = this;
    setMinFrameMs(state !== "running" ? 0 : this.about?.software ? SOFTWARE_FRAME_MS : this.about?.ranks > 1 ? SHARED_FRAME_MS : 0);
    const trains = this.canTrain && Boolean(this.settings.game); // which comes with the first agent
    enable($("start"), state !== "starting" && trains);
    $("imitate").hidden = !this.canTrain;
    if (!this.trainedGame) this.imitates = false;
    const live = this.source === "live";
    $("settings").hidden = live;
    $("run-settings").hidden = !live;
    const other = this.trainedGame !== this.settings.game;
    const isStaged = this.currentGame === this.stagedGame;
    write($("start"), !this.wouldReplace() ? "Train" : super.wouldReplace() && (other || this.imitates) ? "Train this instead" : "Train again");
    enable($("pause"), ["running", "paused"].includes(state));
    write($("pause"), state === "paused" ? "Resume" : "Pause");
    enable($("reset"), state !== "idle");
    write($("train-here"), (isStaged && BUTTON_LABELS[state]) || (this.shelf.has(this.stagedGame) ? "Resume" : isStaged && (state === "done" || this.isKept()) && !this.imitates ? "Train again" : "Train an agent"));
    $("train-here").hidden = $("reset").hidden = live;
    enable($("train-here"), trains && !(isStaged && ["starting", "pausing"].includes(state)));
    write($("learn-title"), live ? "Watching a run" : !this.canTrain ? "This agent has a memory" : this.imitates && isStaged ? "An agent imitates your moves" : TIMES[this.stagedGame] ? `An agent learns this game in ${TIMES[this.stagedGame]}` : "Watch an agent learn this game");
    const curves = this.shownCurves();
    const runs = curves.countedRuns();
    const iteration = Math.min(...runs.map((run) => run.last.iteration));
    $("progress").value = runs.length > 0 && curves.end ? iteration / curves.end : 0;
    $("csv").hidden = runs.length === 0;
    write($("lab-title"), runs.length > 0 && !live ? `Training: ${this.titleOf(this.trainedGame)}` : "Training");
    this.charts.setImitation(Boolean(live ? this.watchedCurves.imitates : this.imitates));
    this.charts.showSeeds(live ? [] : [...curves.runs.keys()]);
    const at = live && watchedProgress(curves, runs.length > 0 ? iteration : 0);
    write($("state"), live ? at : this.stateLine(state));
    write($("state-here"), !live ? this.stageLine(state) : curves.foreign ? `${at}. ${FOREIGN_GAME}` : at);
    const device = this.about;
    $("device-wall").hidden = !(["running", "pausing", "paused", "done"].includes(state) && device?.api === "WebGPU");
    write($("stat-training"), live ? this.watchedCurves.trainedOn : device
      ? [...(device.api === "WebGPU" ? [device.api, device.device] : [device.ranks > 1 ? `CPU, ${device.ranks} workers in WebAssembly` : "CPU, in WebAssembly"]), this.newest && `${short(this.newest.steps_per_second)} steps a second`].filter(Boolean).join(", ") : "nothing yet");
    this.trainingMemory = [
      this.newest?.memory.in_use && `${megabytes(this.newest.memory.in_use)} of the training device`,
      this.memory && `${megabytes(this.memory)} of the worker`,
    ].filter(Boolean);
  }

  /** The progress of the training: iterations, score, and greedy score. */
  progress() {
    const runs = this.ownCurves.countedRuns();
    const scores = runs.map((run) => run.lines.score?.at(-1)?.y).filter(Number.isFinite);
    const greedy = this.ownCurves.evaluations();
    const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
    return {
      iteration: runs.length > 0 ? Math.min(...runs.map((run) => run.last.iteration)) : 0,
      score: scores.length > 0 ? mean(scores) : undefined,
      greedy: greedy.length > 0 ? mean(greedy) : undefined,
    };
  }

  /** The state in one line. */
  stateLine(state) {
    const { iteration, score, greedy } = this.progress();
    const rest = [
      iteration > 0 ? `iteration ${iteration} of ${this.ownCurves.end}` : "the first iteration",
      score !== undefined && `score ${fixed(score)}`, greedy !== undefined && `greedy ${fixed(greedy)}`,
    ].filter(Boolean).join(", ");
    const game = this.currentGame;
    const left = this.remainingTime();
    return {
      idle: "Not started", refused: "Not started: see what is wrong", starting: `Getting ready to train ${game}`,
      running: `Training ${game}: ${rest}${left ? `, ${left}` : ""}`, pausing: `Pausing ${game} after this iteration: ${rest}`, paused: `Paused ${game}: ${rest}`,
      done: `${this.failures.length > 0 ? "Stopped" : "Finished"} ${game}: ${rest}`,
    }[state];
  }

  /** The state beside the stage, for a visitor who knows nothing of it. */
  stageLine(state) {
    if (!this.canTrain) return `This page plays networks with a memory but does not train them. Train one in a terminal: grove train ${this.stagedGame} --watch`;
    const { iteration, score, greedy } = this.progress();
    const optimum = this.ownCurves.references.find(([name]) => name === "optimum")?.[1];
    const best = greedy ?? score;
    const result = best === undefined ? "" : ` ${this.imitates ? "It" : "Your agent"} scores ${fixed(best)}${optimum === undefined ? "" : ` (optimum ${fixed(optimum)})`}.`;
    const at = `iteration ${iteration} of ${this.ownCurves.end}`;
    const left = this.remainingTime();
    const shelved = this.shelf.get(this.stagedGame);
    const waits = shelved ? `Paused at iteration ${reachedIteration(shelved)} of ${shelved.wanted[0].iterations}.` : "";
    const of = !this.currentGame || this.currentGame === this.stagedGame ? "" : `${this.titleOf(this.currentGame)}: `;
    const verb = this.imitates ? "Imitating you" : "Training";
    const line = {
      idle: waits ? "" : "It starts with random weights. Press the button and watch its score rise.",
      refused: "Not started.", starting: "Starting…",
      running: `${verb}, ${at}${left ? `, ${left}` : ""}.${result}`, pausing: `Pausing after this iteration.${result}`,
      paused: `Paused at ${at}.${result}`, done: `${this.failures.length > 0 ? "Stopped." : "Done."}${result}`,
    }[state];
    return [waits, of + line].filter(Boolean).join(" ");
  }

  /** Draws games from the device's memory while the wall is unfolded. */
  showDeviceWall() {
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
const reachedIteration = ({ saved }) => Math.min(...Object.values(saved).map(({ iteration }) => iteration));
