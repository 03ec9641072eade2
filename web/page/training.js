// The client of the workers that train. Resetting ends them, which frees all that they had.

import { hasGpu } from "./adapter.js";
import { sentence } from "./dom.js";

/** Workers that train at most. */
const MOST = 8;

/** Bytes that a worker may leave for another at once: the gradient of a small policy. */
const BOX = 65_536;

export class Training {
  /**
   * `on` hears `about(seed, about)`, `record(seed, record)`, `policy(seed, file, iteration)`, `saved(seed, saved)`,
   * `failed(seed, iteration, why)`, `refused(why)`, `noWall(why)`, `memory(bytes)` and `state(name)`.
   */
  constructor(on) {
    this.on = on;
    this.state = "idle"; // starting, running, pausing, paused, done, refused
  }

  become(state) {
    this.state = state;
    this.on.state(state);
  }

  /**
   * Trains: `wanted` are `{ seed, iterations, text, saved, games }`, of which `saved` is what a run goes on from,
   * `games` a file of games that it learns from instead of playing, `way` is auto, WebGPU or CPU. Seeds are spread over
   * workers, a processor each; where there are more processors and the host allows memory that workers share, several
   * share a run. A GPU is one worker's.
   */
  async start(wanted, way, paused = false) {
    this.end();
    this.become("starting");
    const mine = (this.begun = {});
    const gpu = way === "WebGPU" || (way === "auto" && (await hasGpu()));
    if (this.begun !== mine || this.state !== "starting") return;
    const processors = navigator.hardwareConcurrency ?? 2;
    const count = gpu ? 1 : Math.min(wanted.length, Math.max(1, processors - 1));
    // Those who share a run wait for each other often: a processor is left to the page, where there are three.
    const free = processors > 2 ? Math.min(processors - 1, MOST) : processors;
    const size = gpu || !globalThis.crossOriginIsolated ? 1 : Math.max(1, Math.floor(free / count));
    const parts = Array.from({ length: count }, (_, i) => wanted.filter((_, j) => j % count === i));
    this.states = parts.map(() => "starting");
    this.workers = parts.flatMap((part, i) => {
      // Who shares several runs would have to wait for one after the other.
      const members = part.length === 1 ? size : 1;
      const memory = members > 1 ? new SharedArrayBuffer(members * members * BOX) : undefined;
      return Array.from({ length: members }, (_, rank) => {
        const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
        worker.onmessage = ({ data }) => this.hear(data, i);
        worker.onerror = (event) => {
          event.preventDefault();
          this.hear({ is: "refused", why: `The worker that trains has broken down: ${sentence(event.message || "it could not be loaded")}.` }, i);
        };
        const place = memory && { memory, rank, size: members };
        worker.postMessage({ do: "start", wanted: part, gpu, place, paused });
        return worker;
      });
    });
  }

  end() {
    this.workers?.forEach((worker) => worker.terminate());
    this.workers = undefined;
  }

  hear(data, i) {
    if (!this.workers) return;
    if (data.is === "records") {
      if (this.state === "starting") this.become("running");
      for (const record of data.records) this.on.record(data.seed, record);
    } else if (data.is === "policy") this.on.policy(data.seed, data.file, data.iteration);
    else if (data.is === "saved") this.on.saved(data.seed, data.saved);
    else if (data.is === "about") this.on.about(data.seed, data.about);
    else if (data.is === "memory") this.on.memory(data.bytes);
    else if (data.is === "failed") this.on.failed(data.seed, data.iteration, data.why);
    else if (data.is === "no wall") this.on.noWall(data.why);
    else if (data.is === "refused") {
      this.end();
      this.become("refused");
      this.on.refused(data.why);
    } else {
      // Paused or done, once all workers are.
      this.states[i] = data.is;
      if (this.states.every((state) => state === "done")) this.become("done");
      else if (this.states.every((state) => ["paused", "done"].includes(state))) this.become("paused");
    }
  }

  tell(message) {
    this.workers?.forEach((worker) => worker.postMessage(message));
  }

  pause() {
    this.tell({ do: "pause" });
    this.become("pausing");
  }

  goOn() {
    this.states = this.states.map((state) => (state === "done" ? state : "running"));
    this.tell({ do: "go on" });
    this.become("running");
  }

  reset() {
    this.end();
    this.become("idle");
  }

  /** Draws games of the first seed from the device's memory on a canvas that nothing else draws on; `calm`
      without motion between their steps. */
  showWall(canvas, games, calm) {
    const offscreen = canvas.transferControlToOffscreen();
    this.workers[0].postMessage({ do: "wall", canvas: offscreen, games, calm }, [offscreen]);
  }

  endWall() {
    this.workers?.[0].postMessage({ do: "no wall" });
  }
}
