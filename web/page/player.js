// The clock: times the steps and their motion.

import { inFrame, notInFrame } from "./frames.js";

/** Steps a second at 1x. */
export const RATE = 10;
/** The time budget for steps in a frame, in milliseconds. */
const BUDGET = 8;
/** Drawing takes at most one part in this many of the time, so that the page stays responsive. */
const SHARE = 4;
/** The longest time between two frames that counts: a background tab does not catch up. */
const LONGEST = 100;

/** The speeds of the slider; the last is unlimited. */
export const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16, 32, Infinity];
export const speedName = (speed) => (speed === Infinity ? "max" : `${speed}×`);

export class Player {
  /** `step()` plays a step; `draw(part)` draws `part`, 0 to 1, of its motion. */
  constructor({ step, draw, changed }) {
    Object.assign(this, { step, draw, changed });
    this.speed = 1;
    this.playing = false;
    this.limit = Infinity; // of the speed, where a person plays
    this.single = false;
    this.part = 1;
    this.dirty = true;
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    this.last = 0;
    this.rest = 0;
    this.framed = (now) => this.frame(now);
    this.channel = new MessageChannel();
    this.channel.port1.onmessage = () => this.hurry();
    document.addEventListener("visibilitychange", () => this.run());
    this.run();
  }

  /** Plays at unlimited speed: steps between frames, in small portions. */
  hurry() {
    if (!this.playing || document.hidden || Math.min(this.speed, this.limit) < Infinity) {
      this.hurrying = false;
      return;
    }
    const end = performance.now() + BUDGET;
    while (performance.now() < end) this.step();
    this.part = 1;
    this.hurrying = true;
    this.channel.port2.postMessage(0);
  }

  play(on) {
    this.playing = on;
    this.single = false;
    this.dirty = true; // the texts must describe the step at which it stops
    this.changed();
  }

  /** Plays one step and its motion. */
  once() {
    this.play(false);
    this.step();
    this.part = this.calm.matches ? 1 : 0;
    this.single = true;
  }

  /** Redraws after a change other than time. */
  touch() {
    this.dirty = true;
  }

  /** Restarts the clock, without motion. */
  rewind() {
    this.part = 1;
    this.single = false;
    this.touch();
  }

  run() {
    notInFrame(this.framed);
    this.last = 0;
    if (!document.hidden) inFrame(this.framed);
  }

  frame(now) {
    inFrame(this.framed);
    if (now < this.rest) return;
    const start = performance.now();
    this.picture(now);
    this.rest = now + Math.min(LONGEST, (SHARE - 1) * (performance.now() - start));
  }

  picture(now) {
    const passed = this.last ? Math.min(now - this.last, LONGEST) : 0;
    this.last = now;
    if (this.playing || this.single) this.advance(passed / 1000);
    else if (!this.dirty) return;
    this.dirty = false;
    this.draw(this.calm.matches ? 1 : this.part);
  }

  advance(seconds) {
    const speed = this.single ? 1 : Math.min(this.speed, this.limit);
    if (speed === Infinity) {
      if (!this.hurrying) this.hurry();
      return;
    }
    this.part += seconds * RATE * speed;
    if (this.single) {
      this.part = Math.min(this.part, 1);
      this.single = this.part < 1;
      return;
    }
    const end = performance.now() + BUDGET;
    do {
      if (this.part < 1) return;
      this.step();
      this.part -= 1;
    } while (performance.now() < end);
    // Steps beyond the budget are dropped.
    this.part = Math.min(this.part, 1);
  }
}
