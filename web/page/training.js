// The client of the workers that train. A reset ends them, which frees all their memory.

import { hasAdapter, hasGpu } from "./adapter.js";
import { sentence } from "./dom.js";

/** The largest number of workers. */
const MAX_WORKERS = 8;

/** The capacity of a message from one worker to another, in bytes: the gradient of a small policy. */
const MESSAGE_BYTES = 65_536;

export class Training {
  /**
   * Trains by a module, "train" for games or "text". `on` has the callbacks `about(seed, about)`,
   * `record(seed, record, completions)`, `policy(seed, file, iteration)`, `saved(seed, saved)`,
   * `failed(seed, iteration, why)`, `refused(why)`, `noWall(why)`, `memory(bytes)`, `answers(message)`,
   * `file(bytes, why)`, either of which is undefined, and `state(name)`.
   */
  constructor(module, on) {
    this.module = module;
    this.on = on;
    this.state = "idle"; // starting, running, pausing, paused, done, refused
    this.spareWorkers = []; // workers whose module is ready
  }

  /** The number of workers that share a run on the CPU. Those that do wait for each other often, so one processor of
      three or more is left to the page. */
  get sharingWorkers() {
    const processors = navigator.hardwareConcurrency ?? 2;
    const free = processors > 2 ? Math.min(processors - 1, MAX_WORKERS) : processors;
    // WebKitGTK isolates a page and has no shared memory all the same.
    const sharesMemory = globalThis.crossOriginIsolated && "SharedArrayBuffer" in globalThis;
    return this.module === "train" && sharesMemory ? free : 1;
  }

  /** Starts the workers of a run before it is asked for: each fetches, compiles and starts the module. */
  async warmUp() {
    const count = (await hasGpu()) ? 1 : this.sharingWorkers;
    while (this.spareWorkers.length < count) {
      const worker = this.newWorker();
      worker.onerror = (event) => { event.preventDefault(); this.spareWorkers = this.spareWorkers.filter((spareWorker) => spareWorker !== worker); };
      worker.onmessage = () => performance.mark("warm");
      worker.postMessage({ do: "load", module: this.module });
      this.spareWorkers.push(worker);
    }
  }

  newWorker() {
    return new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  }

  setState(state) {
    this.state = state;
    this.on.state(state);
  }

  /**
   * Starts runs: `seedRuns` are `{ seed, iterations, text, saved, file }`. `text` holds the settings, `saved` a
   * checkpoint to resume, `file` the games to learn from instead of playing, or a language model to start from.
   * `device` is auto, WebGPU or CPU. Seeds are spread over workers, a processor each; where more processors are left and
   * the host allows shared memory, several workers share a run. One worker alone uses a GPU. A language model is trained
   * by one worker, which answers `question` meanwhile.
   */
  async start(seedRuns, device, paused = false, question = undefined) {
    this.endWorkers();
    this.setState("starting");
    const start = (this.lastStart = {});
    const gpu = device === "WebGPU" || (device === "auto" && (await hasGpu()));
    const isMissing = device === "WebGPU" && !(await hasAdapter());
    if (this.lastStart !== start || this.state !== "starting") return;
    if (isMissing) return this.refuse("WebGPU was asked for, but this browser offers no adapter.");
    try {
      this.startWorkers({ seedRuns, gpu, paused, question });
    } catch (error) {
      this.refuse(`The training cannot be started: ${sentence(error)}`);
    }
  }

  startWorkers({ seedRuns, gpu, paused, question }) {
    const processors = navigator.hardwareConcurrency ?? 2;
    const count = gpu ? 1 : Math.min(seedRuns.length, Math.max(1, processors - 1));
    const size = gpu ? 1 : Math.max(1, Math.floor(this.sharingWorkers / count));
    const parts = Array.from({ length: count }, (_, i) => seedRuns.filter((_, j) => j % count === i));
    this.states = parts.map(() => "starting");
    this.workers = [];
    parts.forEach((part, i) => {
      // A worker with several runs does not share them: it would wait in each of them in turn.
      const ranks = part.length === 1 ? size : 1;
      const memory = ranks > 1 ? new SharedArrayBuffer(ranks * ranks * MESSAGE_BYTES) : undefined;
      for (let rank = 0; rank < ranks; rank += 1) {
        const worker = this.spareWorkers.shift() ?? this.newWorker();
        this.workers.push(worker);
        worker.onmessage = ({ data }) => this.receive(data, i);
        worker.onerror = (event) => {
          event.preventDefault();
          this.receive({ is: "refused", why: `The worker that trains has broken down: ${sentence(event.message || "it could not be loaded")}` }, i);
        };
        const place = memory && { memory, rank, size: ranks };
        worker.postMessage({ do: "start", module: this.module, seedRuns: part, gpu, place, paused, question });
      }
    });
  }

  /** Resolves once a worker of its own could start this run, paused; rejects with the reason if it refuses. The
      training under way continues. */
  async check(run) {
    const worker = this.newWorker();
    try {
      await new Promise((done, fail) => {
        worker.onmessage = ({ data }) => (data.is === "refused" ? fail(new Error(data.why)) : data.is === "about" && done());
        worker.onerror = (event) => { event.preventDefault(); fail(new Error(event.message || "The worker that reads it could not be loaded.")); };
        worker.postMessage({ do: "start", module: this.module, seedRuns: [run], gpu: false, paused: true });
      });
    } finally {
      worker.terminate();
    }
  }

  endWorkers() {
    this.workers?.forEach((worker) => worker.terminate());
    this.workers = undefined;
  }

  refuse(why) {
    this.endWorkers();
    this.setState("refused");
    this.on.refused(why);
  }

  receive(data, i) {
    if (!this.workers || data.is === "loaded") return;
    if (data.is === "records") {
      if (this.state === "starting") this.setState("running");
      for (const { record, completions } of data.news) this.on.record(data.seed, record, completions);
    } else if (data.is === "policy") this.on.policy(data.seed, data.file, data.iteration);
    else if (data.is === "saved") this.on.saved(data.seed, data.saved);
    else if (data.is === "about") this.on.about(data.seed, data.about);
    else if (data.is === "memory") this.on.memory(data.bytes);
    else if (data.is === "failed") this.on.failed(data.seed, data.iteration, data.why);
    else if (data.is === "answers") this.on.answers(data);
    else if (data.is === "file") this.on.file(data.file, data.why);
    else if (data.is === "no wall") this.on.noWall(data.why);
    else if (data.is === "refused") this.refuse(data.why);
    else {
      // Paused or done, once all workers are.
      this.states[i] = data.is;
      if (this.states.every((state) => state === "done")) this.setState("done");
      else if (this.states.every((state) => ["paused", "done"].includes(state))) this.setState("paused");
    }
  }

  post(message) {
    this.workers?.forEach((worker) => worker.postMessage(message));
  }

  pause() {
    this.post({ do: "pause" });
    this.setState("pausing");
  }

  continue() {
    this.states = this.states.map((state) => (state === "done" ? state : "running"));
    this.post({ do: "continue" });
    this.setState("running");
  }

  reset() {
    this.endWorkers();
    this.setState("idle");
  }

  /** Draws games of the first seed from the device's memory on a canvas; `calm` shows no motion between steps. */
  showWall(canvas, games, calm) {
    const offscreen = canvas.transferControlToOffscreen();
    this.workers[0].postMessage({ do: "wall", canvas: offscreen, games, calm }, [offscreen]);
  }

  endWall() {
    this.workers?.[0].postMessage({ do: "no wall" });
  }
}
