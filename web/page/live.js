// A run of the program that serves this page: its records and checkpoints, live.

import { $, setText, showNotice, announce } from "./dom.js";
import { takeFile } from "./keep.js";
import { Policy } from "./watch.js";

/** Milliseconds in which the records arrive that were there before. */
const REPLAY_MS = 1500;

/** Milliseconds until the next attempt, if the browser does not reconnect by itself. */
const RETRY_MS = 2000;

const POLICY_LABELS = { newest: "Run: newest", best: "Run: best" };

/** The subject of a run's page: a game by its name, or text. */
const subjectOf = ({ task, game }) => (task ? "text" : game);

/** The cost of sharing a run between ranks. */
function sharingCost({ communication: { num_ranks: ranks, seconds, hidden_fraction: hidden = 0, imbalance }, seconds: { total } }) {
  const percent = (x) => `${Math.round(100 * x)} %`;
  const cost = `${percent(seconds / total)} of the time spent communicating, ${percent(hidden)} of that overlapped with computation`;
  return `${ranks} ranks, ${cost}, the slowest ${percent(imbalance)} behind the mean`;
}

/** The hardware and engine of a run, from its note. */
const hardwareText = ({ device, engine }) => `${device.name} (${device.description}), ${engine}`;

/** Whether a record has all that is read from it; another program may have written the file. */
const isComplete = ({ seconds, rewards, is_sft }, ofText) => Number.isFinite(seconds?.total) && (!ofText || is_sft || Boolean(seconds.phases && rewards));

/** The result of `askRun` for a run whose directory is gone. */
export const DELETED = "deleted";

/** The description of the run, or `DELETED`; null on a static host, and where nothing answers. */
export async function askRun() {
  const answer = await fetch("run/about.json", { cache: "no-cache" }).catch(() => undefined);
  if (answer?.ok) return answer.json();
  return answer && /has no config\.toml/.test(await answer.text()) ? DELETED : null;
}

/** The progress of a watched run, in words. */
export const watchedProgress = ({ isDeleted, end }, iteration) => (isDeleted ? "The run has been deleted" : `Iteration ${iteration} of ${end}`);

export class Live {
  /** `on` has the callbacks `changed()` for new records, `policy(id, label, file)` if the page plays policies of the
      run, `plays(game)`, whether it can play a game, and `replaced(about, former)`, once a run of another game or of
      text has taken the place of the former. */
  constructor(about, curves, on) {
    Object.assign(this, { about, curves, on, subject: subjectOf(about) });
    this.tags = {};
    this.begunAt = performance.now();
    this.setAbout(about);
    $("live").hidden = false;
    this.listenWhileShown();
    document.addEventListener("visibilitychange", () => this.listenWhileShown());
    setInterval(() => (this.mayBeGone() ? this.askAgain() : this.showStatus()), 1000);
  }

  /** Whether the run is or may be gone: the stream says nothing where a run is deleted before its first record. */
  mayBeGone() {
    return this.curves.isDeleted || (this.isConnected && this.curves.runs.size === 0);
  }

  /** Asks for the description of the run again, since another run may have taken its place. */
  async askAgain() {
    if (this.isReplaced) return;
    const about = await askRun();
    this.curves.isDeleted = about === DELETED;
    if (about === DELETED) this.on.changed();
    else if (about) this.setAbout(about);
    this.showStatus();
  }

  setAbout(about) {
    if (this.isReplaced) return;
    if (subjectOf(about) !== this.subject) return this.end(about);
    this.about = about;
    setText($(about.task ? "text-source-live" : "source-live"), about.run);
    this.curves.end = about.iterations ?? 0;
    this.curves.task = about.task;
    this.curves.imitates = Boolean(about.settings?.data?.path);
    this.curves.isForeign = Boolean(this.on.policy) && !this.on.plays(about.game);
    this.curves.highestScore = about.trained_with?.highest_score;
    this.curves.references = about.references.map(({ player, score }) => [player, score]);
    this.noteHardware();
    this.showSettings().catch(() => {}); // a lost connection is reported elsewhere
    for (const which of ["best", "newest"]) if (about[which]) this.fetchPolicy(about[which]);
    this.on.changed();
  }

  /** Ends the watching, since the page is made for the game or the text of a run that is no longer there. */
  end(about) {
    this.isReplaced = true;
    this.events?.close();
    this.events = undefined; // no retry that waits listens again
    this.on.replaced(about, this.about);
  }

  /** Says what trains the run, and what it costs to share it between ranks. */
  noteHardware() {
    const { trained_with: note } = this.about;
    const lastRecord = this.curves.runs.get("run")?.lastRecord;
    this.curves.trainedOn = [note?.device && hardwareText(note), lastRecord?.communication && sharingCost(lastRecord)].filter(Boolean).join("; ") || "unknown";
  }

  /** Shows the settings of the run. */
  async showSettings() {
    const answer = await fetch("run/files/config.toml");
    if (answer.ok) setText($(this.about.task ? "text-toml" : "run-toml"), await answer.text());
  }

  /** Listens to the run while the tab is shown: a browser has six connections to a host, for all of its tabs
      together, and with one more stream than that each request would wait for ever. */
  listenWhileShown() {
    this.events?.close();
    this.events = this.isConnected = undefined;
    if (document.hidden || this.isReplaced) this.showStatus();
    else this.listen();
  }

  listen() {
    const events = (this.events = new EventSource("run/events"));
    events.addEventListener("open", () => this.setConnected(true));
    events.addEventListener("error", () => {
      this.setConnected(false);
      // The browser reconnects by itself, but not after an answer that is no stream.
      if (events.readyState === EventSource.CLOSED) setTimeout(() => { if (this.events === events) this.listen(); }, RETRY_MS);
    });
    events.addEventListener("start", () => this.beginRecords());
    events.addEventListener("record", (event) => this.receive(JSON.parse(event.data)));
    events.addEventListener("checkpoint", (event) => this.fetchPolicy(JSON.parse(event.data)));
  }

  setConnected(isConnected) {
    if (this.isConnected === true && !isConnected) showNotice("The program that serves this page has stopped or cannot be reached. Reconnecting…");
    if (this.isConnected === false && isConnected) {
      announce("Reconnected to the program that serves this page.");
      this.askAgain(); // another program may have resumed the run, with other settings
    }
    this.isConnected = isConnected;
    this.showStatus();
  }

  /** Prepares for all records from the start, perhaps of another run. */
  beginRecords() {
    const { end, references } = this.curves;
    this.curves.clear();
    Object.assign(this.curves, { end, references });
    const begunAt = (this.begunAt = performance.now());
    this.heardAt = this.askedPastEnd = undefined;
    this.curves.isReplaying = true;
    setTimeout(() => {
      if (this.begunAt !== begunAt) return;
      this.curves.isReplaying = false;
      this.on.changed();
    }, REPLAY_MS);
    this.on.changed();
    this.askAgain();
  }

  receive(record) {
    if (!isComplete(record, this.about.task)) {
      return showNotice(`Iteration ${record.iteration} is left out of the curves: its record in metrics.jsonl is incomplete.`);
    }
    // A run that goes past its end has been resumed with a later one, which is asked for once.
    const isPast = record.iteration > this.curves.end && this.askedPastEnd !== this.curves.end;
    if (isPast) this.askedPastEnd = this.curves.end;
    if (isPast || this.curves.runs.size === 0) this.askAgain();
    this.curves.add("run", record);
    this.noteHardware();
    // Earlier records arrive at once and say nothing about the present.
    if (performance.now() - this.begunAt > REPLAY_MS) this.heardAt = performance.now();
    this.on.changed();
  }

  /** Fetches a checkpoint, which is dropped if another one has been announced meanwhile. */
  async fetchPolicy({ which, tag }) {
    // The page does not use a language model's weights.
    if (!this.on.policy || this.curves.isForeign || this.tags[which] === tag) return;
    this.tags[which] = tag;
    try {
      const [config, weights] = await Promise.all(["config.toml", "weights.safetensors"].map(async (name) => {
        const answer = await fetch(`run/files/${which}/${name}`);
        if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
        return answer;
      }));
      const [toml, bytes] = [await config.text(), new Uint8Array(await weights.arrayBuffer())];
      if (this.tags[which] !== tag) return;
      this.on.policy(which, `${POLICY_LABELS[which]} (${weights.headers.get("grove-iteration")})`, takeFile(Policy.from_parts(toml, bytes)));
    } catch (error) {
      if (this.tags[which] !== tag) return;
      this.tags[which] = undefined;
      if (this.isConnected && this.complaint !== error.message) showNotice(`The run's ${which} policy cannot be read: ${error.message}`);
      this.complaint = error.message; // said once, not at every checkpoint
    }
  }

  showStatus() {
    const [state, text] = this.state();
    setText($("live"), `${this.about.run}: ${text}`);
    document.title = `${[this.about.run, ...(document.hidden ? [] : [text])].join(": ")} – Grove`; // one tab of several
    $("live").dataset.state = state;
  }

  /** Whether the newest evaluation of a game has the score at which its run ends early. */
  isGoodEnough() {
    const enough = this.about.settings?.stop?.score;
    return Number.isFinite(enough) && !this.curves.imitates && this.curves.evaluations().some((score) => score >= enough);
  }

  /** The state of the run, for its colour and in words. */
  state() {
    const lastRecord = this.curves.runs.get("run")?.lastRecord;
    if (this.isReplaced) return ["idle", "replaced by another run"];
    if (document.hidden) return ["idle", "not watched in the background"];
    if (!this.isConnected) return ["lost", "no connection, trying again"];
    if (this.curves.isDeleted) return ["idle", "deleted"];
    if (!lastRecord) return ["idle", "waiting for the first iteration"];
    if (lastRecord.iteration >= this.about.iterations || this.isGoodEnough()) return ["done", "finished"];
    const isSilent = performance.now() - (this.heardAt ?? this.begunAt) > Math.max(5_000, 3_000 * lastRecord.seconds.total);
    return isSilent ? ["idle", "no new iterations"] : this.heardAt ? ["live", "training"] : ["idle", "waiting for the next iteration"];
  }
}
