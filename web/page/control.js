// The control of a training in this tab, of games or of text: its state, its pace, its curves, and the run that is kept
// in the browser's storage so that a reload resumes it.

import { $, setText, showNotice, reason } from "./dom.js";
import { keepRuns, loadRun, lockRun } from "./keep.js";
import { Training } from "./training.js";

/** Milliseconds between two times that the run is kept in the browser's storage, at least. */
const KEEP_RUN_MS = 2_000;
/** The pause after it was kept, in times that it took: the page's own thread copies the records of a long run. */
const KEEP_REST_FACTOR = 10;

/** The label of a training's button, by its state; in any other state it starts one. */
export const BUTTON_LABELS = { starting: "Starting…", running: "Pause", pausing: "Pausing…", paused: "Resume" };

/** The message when a form has its defaults again. */
export const DEFAULTS_RESTORED = "The settings are the defaults again.";

/** Messages with records that the pace is measured over. */
const PACE_MESSAGES = 60;
/** Milliseconds within which records have come in one message, and say nothing of the time between their iterations. */
const SAME_MESSAGE_MS = 50;

/** The message when a training of `what` is back after a reload. */
export const resumedMessage = (what, paused) => (paused ? `The training of ${what} is still paused.` : `Resuming the training of ${what}.`);

/** What is stored, as a run; undefined if it has not the form of one: another version of the page may have stored it.
    Earlier ones have the name `wanted` for `seedRuns`, and `own` for `settings`. */
export function readRun({ wanted, own, ...stored } = {}) {
  const run = { seedRuns: wanted, settings: own, ...stored };
  const isRun = run.seedRuns?.length > 0 && run.saved && run.records && Object.values(run.saved).every((saved) => saved?.sections);
  return isRun ? run : undefined;
}

export class Control {
  /** `module` trains a `product`, `store` names the run in the browser's storage, `trouble` is the element for
      errors, `ownCurves` are those of this tab; `on` has further callbacks of the training, or replaces those below. */
  constructor({ module, product, store, trouble, ownCurves, on }) {
    Object.assign(this, { product, store, ownCurves, troubleId: trouble });
    this.records = new Map();
    this.failures = [];
    this.paceSamples = [];
    this.training = new Training(module, {
      state: (name) => this.enterState(name),
      record: (seed, record, completions) => this.addRecord(seed, record, completions),
      saved: (seed, saved) => this.addCheckpoint(seed, saved),
      about: (seed, about) => { this.about = about; },
      memory: (bytes) => { this.memory = bytes; },
      failed: (seed, iteration, why) => this.addFailure(seed, iteration, why),
      refused: (why) => this.showRefusal(why),
      ...on,
    });
  }

  get state() {
    return this.preparing ? "starting" : this.training.state;
  }

  isBusy() {
    return ["starting", "running", "pausing", "paused"].includes(this.state);
  }

  /** Whether a new training would take the place of one that can continue. */
  wouldReplace() {
    return this.isBusy() || this.isKept();
  }

  /** Prevents Enter in a field of the form from replacing a training: it focuses the button that would. */
  guardEnter(form, button) {
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !event.target.matches("input") || !this.wouldReplace()) return;
      event.preventDefault();
      button.focus();
    });
  }

  /** Starts a run, `{ seedRuns, device, saved, records }`, once it is known whether this tab may store it: from the
      beginning, or from the checkpoints in `saved` by seed. */
  begin(run, paused = false, question = undefined) {
    this.clear();
    this.run = run;
    this.ownCurves.end = run.seedRuns[0].iterations;
    for (const { seed } of run.seedRuns) {
      this.records.set(seed, [...(run.records[seed] ?? [])]);
      for (const record of this.records.get(seed)) this.ownCurves.add(seed, record);
    }
    const seedRuns = run.seedRuns.map((seedRun) => ({ ...seedRun, saved: run.saved[seedRun.seed] }));
    this.startsPaused = paused;
    this.training.start(seedRuns, run.device, paused, question);
    if (this.mayStore) this.keepRun();
    else showNotice("This training is not kept for a reload: another tab has one under way.");
  }

  /** Starts a new run in place of the one that is kept. */
  beginNew(run, paused, question) {
    this.showTrouble("");
    this.deleteRun();
    this.begin({ ...run, saved: {}, records: {} }, paused, question);
  }

  /** Whether this tab alone may store a run; it keeps that right until `releaseLock()`. What a reload or another tab
      has left is adopted first, since what this tab stores takes its place. */
  async holdLock() {
    const lock = (this.lock ??= this.takeLock());
    const { release, leftRuns } = await lock;
    const isAlone = Boolean(release);
    if (this.lock !== lock) return isAlone; // let go meanwhile
    if (isAlone && !this.mayStore) this.adopt(leftRuns);
    this.mayStore = isAlone;
    if (!isAlone) this.lock = undefined;
    return isAlone;
  }

  /** Waits, as a training of `what` that is starting, until it is known whether this tab may store it; returns
      whether it is still to start, and has not been reset meanwhile. */
  async prepare(what) {
    const start = (this.lastStart = {});
    this.preparing = what;
    this.showState();
    await this.holdLock();
    if (this.lastStart !== start) return false;
    this.preparing = undefined;
    this.showState();
    return true;
  }

  /** The function that releases the lock, and the runs that are stored; neither if another tab has the lock. */
  async takeLock() {
    const release = await lockRun(this.store);
    return { release, leftRuns: release && (await this.storedRuns()) };
  }

  releaseLock() {
    this.lock?.then(({ release }) => release?.());
    this.lock = undefined;
    this.mayStore = false;
  }

  /** The runs in the browser's storage, the one under way last; none if the storage is refused (reported before). */
  async storedRuns() {
    return [readRun(await loadRun(this.store).catch(() => undefined))].filter(Boolean);
  }

  /** Enters a state of the training. One that failed or is refused stays kept: it may succeed after a reload. */
  enterState(name) {
    if (name === "running") this.startsPaused = false;
    if (name === "paused" || name === "running") this.keepRun(true);
    const hasFailed = name === "refused" || this.failures.length > 0;
    if (["done", "refused"].includes(name) && !(hasFailed && this.isKept())) this.forgetRun();
    this.showState();
  }

  addRecord(seed, record) {
    this.ownCurves.add(seed, record);
    this.records.get(seed).push(record);
    if (record.iteration > 0) this.newestRecord = record;
    const [time, iteration] = [performance.now(), Math.min(...this.ownCurves.countedRuns().map((run) => run.lastRecord.iteration))];
    const lastSample = this.paceSamples.at(-1);
    if (lastSample && time - lastSample.time < SAME_MESSAGE_MS) lastSample.iteration = iteration;
    else this.paceSamples.push({ time, iteration });
    if (this.paceSamples.length > PACE_MESSAGES) this.paceSamples.shift();
  }

  addCheckpoint(seed, saved) {
    if (!this.run) return;
    this.run.saved[seed] = saved;
    this.run.records[seed] = this.records.get(seed).filter(({ iteration }) => iteration <= saved.iteration);
    this.keepRun();
  }

  addFailure(seed) {
    this.failures.push(seed);
    this.ownCurves.markFailed(seed);
  }

  showRefusal(why) {
    this.showTrouble(this.isKept() ? `${why} To resume the training, reload the page.` : why);
    this.showState();
  }

  /** Whether there is a checkpoint of the run, and this tab stores it. */
  isKept() {
    return Boolean(this.run && this.mayStore) && Object.keys(this.run.saved).length > 0;
  }

  /** The run as the browser's storage keeps it. */
  runToKeep() {
    return this.run;
  }

  /** Keeps the run in the browser's storage, `now` or when it is due. */
  keepRun(now = false) {
    if (!this.isKept()) return;
    if (!now && (this.isPutting || performance.now() - (this.runKeptAt ?? -Infinity) < (this.keepAgainAfter ?? KEEP_RUN_MS))) return;
    this.runKeptAt = performance.now();
    // A run that is about to start, or cannot, is still as it was kept.
    const paused = this.startsPaused || ["paused", "pausing"].includes(this.state);
    const start = performance.now();
    this.isPutting = true;
    this.putRun({ ...this.runToKeep(), paused }).catch((error) => this.reportStorageRefusal(error)).finally(() => {
      this.isPutting = false;
      this.keepAgainAfter = Math.max(KEEP_RUN_MS, KEEP_REST_FACTOR * (performance.now() - start));
    });
  }

  /** Puts a run into the browser's storage; undefined deletes it. */
  putRun(run) {
    return keepRuns({ [this.store]: run });
  }

  /** Reports that the browser's storage refuses, once. */
  reportStorageRefusal(error) {
    if (this.isStorageRefused) return;
    this.isStorageRefused = true;
    showNotice(`This browser stores nothing for the page (${reason(error)}). Save the ${this.product} as a file to keep it.`);
  }

  forgetRun() {
    this.deleteRun();
    this.releaseLock();
  }

  /** Deletes the kept run, without letting go of the right to store another. */
  deleteRun() {
    if (this.mayStore) this.putRun(undefined).catch(() => {}); // a refused storage is reported when a run is stored
    this.run = this.runKeptAt = undefined;
  }

  togglePause() {
    if (this.state === "running") this.training.pause();
    else if (this.state === "paused") {
      this.paceSamples = [];
      this.training.continue();
    }
  }

  reset() {
    this.preparing = this.lastStart = undefined;
    this.training.reset();
    this.forgetRun();
    this.clear();
    this.showTrouble("");
    this.showState();
  }

  /** Removes the results of the last training. */
  clear() {
    this.ownCurves.clear();
    this.records = new Map();
    this.failures = [];
    this.paceSamples = [];
    this.about = this.memory = this.newestRecord = undefined;
  }

  showTrouble(text) {
    setText($(this.troubleId), text);
    $(this.troubleId).hidden = text === "";
  }

  /** The time to the end, by the pace of the last iterations. */
  remainingTime() {
    const [first, last] = [this.paceSamples[0], this.paceSamples.at(-1)];
    if (!last || last.iteration <= first.iteration) return "";
    const seconds = ((last.time - first.time) / (last.iteration - first.iteration)) * (this.ownCurves.end - last.iteration) / 1000;
    return seconds < 90 ? `${Math.ceil(seconds)} s left` : `${Math.round(seconds / 60)} min left`;
  }
}
