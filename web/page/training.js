// The client of the worker that trains. Resetting ends the worker, which frees all that it had.

import { sentence } from "./dom.js";

export class Training {
  /**
   * `on` hears `about(seed, about)`, `record(seed, record)`, `policy(seed, file, iteration)`,
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

  /** Trains: `wanted` are `{ seed, iterations, text }`, `way` is auto, WebGPU or CPU. */
  start(wanted, way) {
    this.worker?.terminate();
    this.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data }) => this.hear(data);
    this.worker.onerror = (event) => {
      event.preventDefault();
      this.hear({ is: "refused", why: `The worker that trains has broken down: ${sentence(event.message || "it could not be loaded")}.` });
    };
    this.worker.postMessage({ do: "start", wanted, way });
    this.become("starting");
  }

  hear(data) {
    if (data.is === "record") {
      if (this.state === "starting") this.become("running");
      this.on.record(data.seed, data.record);
    } else if (data.is === "policy") this.on.policy(data.seed, data.file, data.iteration);
    else if (data.is === "about") this.on.about(data.seed, data.about);
    else if (data.is === "memory") this.on.memory(data.bytes);
    else if (data.is === "failed") this.on.failed(data.seed, data.iteration, data.why);
    else if (data.is === "no wall") this.on.noWall(data.why);
    else if (data.is === "refused") {
      this.worker.terminate();
      this.become("refused");
      this.on.refused(data.why);
    } else this.become(data.is);
  }

  pause() {
    this.worker.postMessage({ do: "pause" });
    this.become("pausing");
  }

  goOn() {
    this.worker.postMessage({ do: "go on" });
    this.become("running");
  }

  reset() {
    this.worker?.terminate();
    this.worker = undefined;
    this.become("idle");
  }

  /** Draws games of the first seed from the device's memory on a canvas that nothing else draws on; `calm`
      without motion between their steps. */
  showWall(canvas, games, calm) {
    const offscreen = canvas.transferControlToOffscreen();
    this.worker.postMessage({ do: "wall", canvas: offscreen, games, calm }, [offscreen]);
  }

  endWall() {
    this.worker?.postMessage({ do: "no wall" });
  }
}
