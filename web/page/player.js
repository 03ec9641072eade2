// The clock: times the steps and their motion.

import { drawInFrame, cancelDraw } from "./frames.js";

/** Steps a second at 1x. */
export const STEPS_PER_SECOND = 10;
/** The time budget for steps in a frame, in milliseconds. */
const STEPS_BUDGET_MS = 8;
/** Drawing takes at most one part in this many of the time, so that the page stays responsive. */
const DRAWING_SHARE = 4;
/** The longest time between two frames that counts: a background tab does not catch up. */
const LONGEST_FRAME_MS = 100;

/** The speeds of the slider; the last is unlimited. */
export const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16, 32, Infinity];
export const speedName = (speed) => (speed === Infinity ? "max" : `${speed}×`);

export class Player {
  /** `step()` plays a step; `draw(part)` draws `part`, 0 to 1, of its motion; `onChange()` is called when it starts
      or stops. */
  constructor({ step, draw, onChange }) {
    Object.assign(this, { step, draw, onChange });
    this.speed = 1;
    this.isPlaying = false;
    this.maxSpeed = Infinity; // of the speed, where a person plays
    this.isSingleStep = false;
    this.part = 1;
    this.isDirty = true;
    this.reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
    this.lastFrameAt = 0;
    this.restUntil = 0;
    this.onFrame = (now) => this.nextFrame(now);
    this.channel = new MessageChannel();
    this.channel.port1.onmessage = () => this.playUnlimited();
    document.addEventListener("visibilitychange", () => this.schedule());
    this.schedule();
  }

  /** Plays at unlimited speed: steps between frames, in small portions. */
  playUnlimited() {
    if (!this.isPlaying || document.hidden || Math.min(this.speed, this.maxSpeed) < Infinity) {
      this.playsUnlimited = false;
      return;
    }
    const end = performance.now() + STEPS_BUDGET_MS;
    while (performance.now() < end) this.step();
    this.part = 1;
    this.playsUnlimited = true;
    this.channel.port2.postMessage(0);
  }

  play(isPlaying) {
    this.isPlaying = isPlaying;
    this.isSingleStep = false;
    this.isDirty = true; // the texts must describe the step at which it stops
    this.onChange();
  }

  /** Plays one step and its motion. */
  stepOnce() {
    this.play(false);
    this.step();
    this.part = this.reducedMotion.matches ? 1 : 0;
    this.isSingleStep = true;
  }

  /** Redraws after a change other than time. */
  touch() {
    this.isDirty = true;
  }

  /** Restarts the clock, without motion. */
  resetClock() {
    this.part = 1;
    this.isSingleStep = false;
    this.touch();
  }

  schedule() {
    cancelDraw(this.onFrame);
    this.lastFrameAt = 0;
    if (!document.hidden) drawInFrame(this.onFrame);
  }

  nextFrame(now) {
    drawInFrame(this.onFrame);
    if (now < this.restUntil) return;
    const start = performance.now();
    this.drawFrame(now);
    this.restUntil = now + Math.min(LONGEST_FRAME_MS, (DRAWING_SHARE - 1) * (performance.now() - start));
  }

  drawFrame(now) {
    const elapsedMs = this.lastFrameAt ? Math.min(now - this.lastFrameAt, LONGEST_FRAME_MS) : 0;
    this.lastFrameAt = now;
    if (this.isPlaying || this.isSingleStep) this.advance(elapsedMs / 1000);
    else if (!this.isDirty) return;
    this.isDirty = false;
    this.draw(this.reducedMotion.matches ? 1 : this.part);
  }

  advance(seconds) {
    const speed = this.isSingleStep ? 1 : Math.min(this.speed, this.maxSpeed);
    if (speed === Infinity) {
      if (!this.playsUnlimited) this.playUnlimited();
      return;
    }
    this.part += seconds * STEPS_PER_SECOND * speed;
    if (this.isSingleStep) {
      this.part = Math.min(this.part, 1);
      this.isSingleStep = this.part < 1;
      return;
    }
    const end = performance.now() + STEPS_BUDGET_MS;
    do {
      if (this.part < 1) return;
      this.step();
      this.part -= 1;
    } while (performance.now() < end);
    // Steps beyond the budget are dropped.
    this.part = Math.min(this.part, 1);
  }
}
