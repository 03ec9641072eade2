// A run of the program that serves this page: its records and checkpoints, live.

import { $, write, say, announce } from "./dom.js";
import { Policy } from "./watch.js";

/** Milliseconds until the next attempt, if the browser does not reconnect by itself. */
const AGAIN = 2000;

const LABELS = { newest: "Run: newest", best: "Run: best" };

/** The cost of sharing a run between ranks. */
function shared({ reduction: { members, ranks = members, seconds, hidden = 0, imbalance }, seconds: { total } }) {
  const percent = (x) => `${Math.round(100 * x)} %`;
  const cost = `${percent(seconds / total)} of the time spent communicating, ${percent(hidden)} of that overlapped with computation`;
  return `${ranks} ranks, ${cost}, the slowest ${percent(imbalance)} behind the mean`;
}

/** The description of the run; null on a static host. */
export async function askRun() {
  const answer = await fetch("run/about.json", { cache: "no-cache" }).catch(() => undefined);
  return answer?.ok ? answer.json() : null;
}

export class Live {
  /** `on` hears `changed()` after new records, and `policy(id, label, file)`. */
  constructor(about, curves, on) {
    Object.assign(this, { about, curves, on });
    this.known = {};
    this.heard = 0;
    this.learn(about);
    $("live").hidden = false;
    this.listen();
    setInterval(() => this.status(), 1000);
  }

  learn(about) {
    this.about = about;
    this.curves.end = about.iterations ?? 0;
    this.curves.references = about.references.map(({ player, score }) => [player, score]);
    for (const which of ["best", "newest"]) if (about[which]) this.fetch(about[which]);
    this.on.changed();
  }

  listen() {
    const events = new EventSource("run/events");
    events.addEventListener("open", () => this.connect(true));
    events.addEventListener("error", () => {
      this.connect(false);
      // The browser reconnects by itself, but not after an answer that is no stream.
      if (events.readyState === EventSource.CLOSED) setTimeout(() => this.listen(), AGAIN);
    });
    events.addEventListener("start", () => this.begin());
    events.addEventListener("record", (event) => {
      this.curves.add("run", JSON.parse(event.data));
      if (Date.now() - this.began > 1500) this.heard = Date.now();
      this.on.changed();
    });
    events.addEventListener("checkpoint", (event) => this.fetch(JSON.parse(event.data)));
  }

  connect(on) {
    if (this.connected === true && !on) say("The program that serves this page has stopped or cannot be reached. Reconnecting…");
    if (this.connected === false && on) announce("Reconnected to the program that serves this page.");
    this.connected = on;
    this.status();
  }

  /** Prepares for all records from the start, perhaps of another run. */
  async begin() {
    const { end, references } = this.curves;
    this.curves.clear();
    Object.assign(this.curves, { end, references });
    this.began = Date.now();
    this.heard = 0;
    this.on.changed();
    const about = await askRun();
    if (about) this.learn(about);
  }

  /** Fetches a checkpoint, and a newer one if it was replaced meanwhile. */
  async fetch({ which, tag, iteration }) {
    if (this.known[which] === tag) return;
    this.known[which] = tag;
    try {
      const [config, weights] = await Promise.all(["config.toml", "weights.safetensors"].map(async (name) => {
        const answer = await fetch(`run/files/${which}/${name}`);
        if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
        return answer;
      }));
      const toml = await config.text();
      write($("run-toml"), toml);
      const policy = Policy.from_parts(toml, new Uint8Array(await weights.arrayBuffer()));
      const file = policy.file();
      policy.free();
      this.on.policy(which, `${LABELS[which]} (${iteration})`, file);
    } catch (error) {
      this.known[which] = undefined;
      if (this.connected) say(`The run's ${which} policy cannot be read: ${error.message}`);
    }
  }

  status() {
    const last = this.curves.runs.get("run")?.last;
    const training = last && Date.now() - this.heard < Math.max(5_000, 3_000 * last.seconds.total);
    const [state, text] = !this.connected ? ["lost", "no connection, trying again"]
      : last && last.iteration >= this.about.iterations ? ["done", "finished"]
      : training ? ["live", "training"] : ["idle", last ? "no news" : "waiting for the first iteration"];
    write($("live"), `${this.about.run}: ${text}${last?.reduction ? `, ${shared(last)}` : ""}`);
    $("live").dataset.state = state;
  }
}
