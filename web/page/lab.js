// Training policies on the page: the form, the buttons, the charts, and the trained agents.

import { Policy } from "./watch.js";
import { $, make, tick, setText, showNotice, announce, setEnabled, formatFixed, formatShort, formatMegabytes } from "./dom.js";
import { Settings } from "./settings.js";
import { BUTTON_LABELS, Control, readRun, DEFAULTS_RESTORED, resumedMessage } from "./control.js";
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

export class Lab extends Control {
  /** `onChange()` is called when a setting changes, `onImitated()` when the games of a person have been learnt. */
  constructor(games, agents, onChange, onImitated) {
    super({ module: "train", product: "policy", store: "run", trouble: "trouble", ownCurves: new Curves(), on: {
      policy: (seed, file, iteration) => this.addPolicy(seed, file, iteration),
      noWall: (why) => { $("device-wall").open = false; showNotice(`The games on the device cannot be shown: ${why}`); },
    } });
    Object.assign(this, { games, agents, onImitated });
    const noteChange = () => { this.clearRangeTrouble(); onChange(); };
    this.settings = new Settings(noteChange);
    this.charts = new Charts(this.ownCurves);
    $("settings").addEventListener("submit", (event) => { event.preventDefault(); this.start(); });
    this.guardEnter($("settings"), $("start"));
    $("pause").addEventListener("click", () => this.togglePause());
    $("defaults").addEventListener("click", () => {
      this.settings.restoreDefaults();
      noteChange();
      announce(DEFAULTS_RESTORED);
    });
    $("train-here").addEventListener("click", () => this.pressTrain());
    $("reset").addEventListener("click", () => this.reset());
    $("csv").addEventListener("click", () => download(`${this.source === "live" ? "run" : this.trainedGame}-curves.csv`, this.shownCurves().csv()));
    $("source").addEventListener("change", (event) => this.show(event.target.value));
    $("device-wall").addEventListener("toggle", () => this.showDeviceWall());
    $("device-games").addEventListener("input", () => this.showDeviceWall());
    this.shelf = new Map(); // by game, the runs that made room for the training of another
    this.hasShelfChanged = false; // whether the shelf is another than in the browser's storage
    this.showState();
  }

  /** Puts the settings of the game on the stage into the form, as the visitor left them; `references` are the scores of
      its known players, `rules` its parameters. */
  setGame(name, references, rules) {
    Object.assign(this, { stagedGame: name, references, rules });
    if (this.settings.game !== name) this.fill(name);
    if (this.ownCurves.runs.size === 0) {
      Object.assign(this.ownCurves, { references, end: this.settings.value("iterations") });
      this.charts.touch();
    }
    this.showState();
  }

  /** What the page knows of a game; undefined if it does not have it. */
  gameNamed(name) {
    return this.games.find((game) => game.name === name);
  }

  /** The title of a game. */
  titleOf(name) {
    return this.gameNamed(name)?.title ?? name;
  }

  /** Puts a game's defaults into the form, with the changes of a link. */
  fill(name, link) {
    this.settings.fill(this.gameNamed(name), link);
    setText($("settings-of"), `Settings for ${this.titleOf(name)}`);
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
  clearRangeTrouble() {
    if ($("trouble").textContent === OUT_OF_RANGE && $("settings").checkValidity()) this.showTrouble("");
  }

  start() {
    this.showTrouble("");
    const seedRuns = this.settings.read(this.settings.game === this.stagedGame ? this.rules : {});
    if (!seedRuns) {
      $("details").open = true;
      return this.showTrouble(OUT_OF_RANGE);
    }
    return this.train({ game: this.settings.game, device: this.settings.deviceInput.value, seedRuns });
  }

  /** Begins a new run, once what other tabs left is on the shelf; a run of the same game there is named instead. */
  async train(run) {
    const { game } = run;
    const formerShelf = this.shelf;
    if (this.preparing) return;
    if (!(await this.prepare(game))) return;
    const adoptedRuns = [...this.shelf.values()].filter((adopted) => !formerShelf.has(adopted.game));
    if (adoptedRuns.some((adopted) => adopted.game === game)) {
      return showNotice(`A training of ${this.titleOf(game)} is paused at iteration ${reachedIteration(this.shelf.get(game))}, left by another tab. Press Resume to continue it, or Train again to replace it.`);
    }
    this.makeRoom(game);
    this.beginNew(run);
    for (const adopted of adoptedRuns) this.announcePaused(adopted);
  }

  /** Learns from a person's games, a file, instead of playing; they are games of `env` with these settings. */
  imitate({ env, settings }, file) {
    const gameSettings = Object.fromEntries(Object.entries(settings).map(([key, value]) => [`${env}.${key}`, value]));
    const [seed, iterations] = [1, IMITATION.iterations];
    const text = writeToml({ env, seed, iterations, "update.num_minibatches": IMITATION.steps, "data.path": "your games", "data.batch_size": IMITATION.batch, ...gameSettings });
    return this.train({ game: env, device: "CPU", seedRuns: [{ seed, iterations, text, file }] });
  }

  wouldReplace() {
    return super.wouldReplace() || this.shelf.has(this.settings.game);
  }

  /** Shelves the run of another game, as of its last checkpoint, before a game is trained. */
  makeRoom(game) {
    const { run, trainedGame } = this;
    if (this.shelf.delete(game)) this.hasShelfChanged = true;
    if (!run || trainedGame === game || !super.wouldReplace()) return;
    if (!run.seedRuns.every(({ seed }) => run.saved[seed])) return showNotice(`The training of ${this.titleOf(trainedGame)} has ended: it was too short to be kept.`);
    this.shelve(this.runToKeep());
    this.hasShelfChanged = true;
    this.announcePaused(this.shelf.get(trainedGame));
  }

  /** Puts a run on the shelf, unless one of the same game there has gone further. */
  shelve(run) {
    const shelvedRun = this.shelf.get(run.game);
    if (!shelvedRun || reachedIteration(run) >= reachedIteration(shelvedRun)) this.shelf.set(run.game, run);
  }

  /** Says that a run waits on the shelf. */
  announcePaused(run) {
    announce(`${this.titleOf(run.game)} is paused at iteration ${reachedIteration(run)}. To continue, pick it and press Resume.`);
  }

  /** Puts a run into the browser's storage, together with the shelf if that has changed: a run that moves between
      them is never in neither. */
  async putRun(run) {
    if (!this.hasShelfChanged) return super.putRun(run);
    this.hasShelfChanged = false;
    try {
      await keepRuns({ [this.store]: run, [SHELF_NAME]: this.shelf.size > 0 ? this.shelf : undefined });
    } catch (error) {
      this.hasShelfChanged = true;
      this.reportStorageRefusal(error);
      throw error;
    }
  }

  /** The runs in the browser's storage: those on the shelf, and the one that was under way. */
  async storedRuns() {
    const shelf = await loadRun(SHELF_NAME).catch(() => undefined);
    return [...(shelf instanceof Map ? shelf.values() : []), ...(await super.storedRuns())].map(readRun).filter((run) => run?.game);
  }

  /** Puts runs that a reload or another tab has left on the shelf. */
  adopt(leftRuns) {
    if (leftRuns.length === 0) return;
    const ownShelf = this.shelf;
    this.shelf = new Map();
    for (const run of [...leftRuns, ...ownShelf.values()]) this.shelve(run);
    this.hasShelfChanged = true;
  }

  /** Whether a run on the shelf is lost with the page. */
  losesShelf() {
    return this.shelf.size > 0 && (!this.mayStore || this.isStorageRefused);
  }

  /** The right to store runs is kept as long as there is one on the shelf. */
  releaseLock() {
    if (this.shelf.size === 0) super.releaseLock();
  }

  begin(run, paused = false) {
    this.trainedGame = run.game;
    this.imitates = Boolean(run.seedRuns[0].file);
    this.followedAgent = `here ${run.seedRuns[0].seed}`;
    this.isAgentShown = false;
    this.hasSeveralSeeds = run.seedRuns.length > 1;
    super.begin(run, paused);
    this.show("here");
  }

  /** Resumes a training that a reload or a closed tab has left, and puts others back on the shelf. */
  async resume() {
    const [[last], leftRuns] = await Promise.all([super.storedRuns(), this.storedRuns()]);
    // A page of a user's own game may have stored others.
    if (!leftRuns.some(({ game }) => this.gameNamed(game)) || !(await this.holdLock()) || this.isBusy()) return this.showState();
    const run = this.shelf.get(last?.game);
    if (!run || !this.gameNamed(run.game)) return this.showState();
    this.makeRoom(run.game);
    const { source } = this;
    this.begin(run, run.paused);
    if (source === "live") this.show(source); // the page was opened for a watched run
    announce(resumedMessage(this.titleOf(run.game), run.paused));
  }

  enterState(name) {
    if (name === "paused" || name === "done") this.keepPolicy();
    const hasImitated = name === "done" && this.run?.seedRuns[0].file;
    super.enterState(name);
    if (hasImitated && this.failures.length === 0) this.onImitated();
  }

  runToKeep() {
    const { about, run } = this;
    // A run on the GPU that the page chose continues without one, where it is gone.
    return { ...run, device: about && about.api !== "WebGPU" ? "CPU" : run.device };
  }

  reset() {
    this.trainedGame = undefined;
    super.reset();
    this.setGame(this.stagedGame, this.references, this.rules);
  }

  /** Removes the results of the last training, but for the agent on the stage. */
  clear() {
    super.clear();
    this.keptAt = performance.now();
    this.unkeptPolicy = undefined;
    for (const id of [...this.agents.byId.keys()]) {
      if (id.startsWith("here ") && id !== this.agents.chosenId) this.agents.withdraw(id);
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
    if (id === this.followedAgent && !this.isAgentShown && this.trainedGame === this.stagedGame) {
      this.isAgentShown = true;
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
    keepLast(this.unkeptPolicy).catch((error) => this.reportStorageRefusal(error));
    this.unkeptPolicy = undefined;
  }

  shownCurves() {
    return this.source === "live" ? this.watchedCurves : this.ownCurves;
  }

  addFailure(seed, iteration, why) {
    const text = `Seed ${seed} stopped after iteration ${iteration}: ${why}`;
    super.addFailure(seed);
    this.showTrouble(text);
    this.showState();
  }

  showRefusal(why) {
    this.settings.showError(why);
    super.showRefusal(why);
  }

  /** Shows the curves of the training in this tab ("here") or of the watched run ("live"). */
  show(source) {
    this.source = source;
    tick("source", source);
    this.charts.show(this.shownCurves());
    this.showState();
  }

  /** Shows the curves of a watched run. */
  follow(curves) {
    this.watchedCurves = curves;
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
    if (this.isWaiting) return;
    this.isWaiting = true;
    setTimeout(() => drawInFrame(() => { this.isWaiting = false; this.showState(); }), SHOW_STATE_MS);
  }

  /** Writes the state of the training into buttons, titles and texts. */
  showState() {
    const { state } = this;
    setMinFrameMs(state !== "running" ? 0 : this.about?.software ? SOFTWARE_FRAME_MS : this.about?.ranks > 1 ? SHARED_FRAME_MS : 0);
    const canStart = this.canTrain && Boolean(this.settings.game); // which comes with the first agent
    setEnabled($("start"), state !== "starting" && canStart);
    $("imitate").hidden = !this.canTrain;
    if (!this.trainedGame) this.imitates = false;
    const isLive = this.source === "live";
    $("settings").hidden = isLive;
    $("run-settings").hidden = !isLive;
    const isStaged = this.currentGame === this.stagedGame;
    setText($("start"), this.startLabel());
    setEnabled($("pause"), ["running", "paused"].includes(state));
    setText($("pause"), state === "paused" ? "Resume" : "Pause");
    setEnabled($("reset"), state !== "idle");
    setText($("train-here"), this.trainHereLabel(isStaged, state));
    $("train-here").hidden = $("reset").hidden = isLive;
    setEnabled($("train-here"), canStart && !(isStaged && ["starting", "pausing"].includes(state)));
    setText($("learn-title"), this.stageTitle(isStaged, isLive));
    const curves = this.shownCurves();
    const runs = curves.countedRuns();
    const iteration = Math.min(...runs.map((run) => run.lastRecord.iteration));
    $("progress").value = runs.length > 0 && curves.end ? iteration / curves.end : 0;
    $("csv").hidden = runs.length === 0;
    setText($("lab-title"), runs.length > 0 && !isLive ? `Training: ${this.titleOf(this.trainedGame)}` : "Training");
    this.charts.setImitation(Boolean(isLive ? this.watchedCurves.imitates : this.imitates));
    this.charts.showSeeds(isLive ? [] : [...curves.runs.keys()]);
    const progress = isLive && watchedProgress(curves, runs.length > 0 ? iteration : 0);
    setText($("state"), isLive ? progress : this.stateLine(state));
    setText($("state-here"), !isLive ? this.stageLine(state) : curves.isForeign ? `${progress}. ${FOREIGN_GAME}` : progress);
    $("device-wall").hidden = !(["running", "pausing", "paused", "done"].includes(state) && this.about?.api === "WebGPU");
    setText($("stat-training"), isLive ? this.watchedCurves.trainedOn : this.deviceLine());
    this.trainingMemory = [
      this.newestRecord?.memory.in_use && `${formatMegabytes(this.newestRecord.memory.in_use)} of the training device`,
      this.memory && `${formatMegabytes(this.memory)} of the worker`,
    ].filter(Boolean);
  }

  /** The label of the form's button. */
  startLabel() {
    if (!this.wouldReplace()) return "Train";
    const isOther = this.trainedGame !== this.settings.game || this.imitates;
    return super.wouldReplace() && isOther ? "Train this instead" : "Train again";
  }

  /** The label of the button beside the stage, whose game is in training if it `isStaged`. */
  trainHereLabel(isStaged, state) {
    if (isStaged && BUTTON_LABELS[state]) return BUTTON_LABELS[state];
    if (this.shelf.has(this.stagedGame)) return "Resume";
    return isStaged && (state === "done" || this.isKept()) && !this.imitates ? "Train again" : "Train an agent";
  }

  /** The title beside the stage. */
  stageTitle(isStaged, isLive) {
    if (isLive) return "Watching a run";
    if (!this.canTrain) return "This agent has a memory";
    if (this.imitates && isStaged) return "An agent imitates your moves";
    const time = this.gameNamed(this.stagedGame)?.training_time;
    return time ? `An agent learns this game in ${time}` : "Watch an agent learn this game";
  }

  /** What trains, and how fast. */
  deviceLine() {
    if (!this.about) return "nothing yet";
    const { api, device, ranks } = this.about;
    const cpu = ranks > 1 ? `CPU, ${ranks} workers in WebAssembly` : "CPU, in WebAssembly";
    const speed = this.newestRecord && `${formatShort(this.newestRecord.steps_per_second)} steps a second`;
    return [...(api === "WebGPU" ? [api, device] : [cpu]), speed].filter(Boolean).join(", ");
  }

  /** The progress of the training: iterations, score, and greedy score. */
  progress() {
    const runs = this.ownCurves.countedRuns();
    const scores = runs.map((run) => run.lines.score?.at(-1)?.y).filter(Number.isFinite);
    const greedyScores = this.ownCurves.evaluations();
    const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
    return {
      iteration: runs.length > 0 ? Math.min(...runs.map((run) => run.lastRecord.iteration)) : 0,
      score: scores.length > 0 ? mean(scores) : undefined,
      greedyScore: greedyScores.length > 0 ? mean(greedyScores) : undefined,
    };
  }

  /** The state in one line. */
  stateLine(state) {
    const { iteration, score, greedyScore } = this.progress();
    const details = [
      iteration > 0 ? `iteration ${iteration} of ${this.ownCurves.end}` : "the first iteration",
      score !== undefined && `score ${formatFixed(score)}`, greedyScore !== undefined && `greedy ${formatFixed(greedyScore)}`,
    ].filter(Boolean).join(", ");
    const game = this.currentGame;
    const timeLeft = this.remainingTime();
    return {
      idle: "Not started", refused: "Not started: see what is wrong", starting: `Getting ready to train ${game}`,
      running: `Training ${game}: ${details}${timeLeft ? `, ${timeLeft}` : ""}`, pausing: `Pausing ${game} after this iteration: ${details}`, paused: `Paused ${game}: ${details}`,
      done: `${this.failures.length > 0 ? "Stopped" : "Finished"} ${game}: ${details}`,
    }[state];
  }

  /** The state beside the stage, for a visitor who knows nothing of it. */
  stageLine(state) {
    if (!this.canTrain) return `This page plays networks with a memory but does not train them. Train one in a terminal: grove train ${this.stagedGame} --watch`;
    const { iteration, score, greedyScore } = this.progress();
    const optimum = this.ownCurves.references.find(([name]) => name === "optimum")?.[1];
    const bestScore = greedyScore ?? score;
    const result = bestScore === undefined ? "" : ` ${this.imitates ? "It" : "Your agent"} scores ${formatFixed(bestScore)}${optimum === undefined ? "" : ` (optimum ${formatFixed(optimum)})`}.`;
    const progress = `iteration ${iteration} of ${this.ownCurves.end}`;
    const timeLeft = this.remainingTime();
    const shelvedRun = this.shelf.get(this.stagedGame);
    const shelfLine = shelvedRun ? `Paused at iteration ${reachedIteration(shelvedRun)} of ${shelvedRun.seedRuns[0].iterations}.` : "";
    const prefix = !this.currentGame || this.currentGame === this.stagedGame ? "" : `${this.titleOf(this.currentGame)}: `;
    const verb = this.imitates ? "Imitating you" : "Training";
    const line = {
      idle: shelfLine ? "" : "It starts with random weights. Press the button and watch its score rise.",
      refused: "Not started.", starting: "Starting…",
      running: `${verb}, ${progress}${timeLeft ? `, ${timeLeft}` : ""}.${result}`, pausing: `Pausing after this iteration.${result}`,
      paused: `Paused at ${progress}.${result}`, done: `${this.failures.length > 0 ? "Stopped." : "Done."}${result}`,
    }[state];
    return [shelfLine, prefix + line].filter(Boolean).join(" ");
  }

  /** Draws games from the device's memory while the wall is unfolded. */
  showDeviceWall() {
    const games = 2 ** $("device-games").valueAsNumber;
    setText($("device-games-out"), `${games}`);
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
