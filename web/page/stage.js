// The canvas and its renderer, WebGPU or a 2D canvas: its size, and recovery after a lost device.

import { Screen } from "./watch.js";
import { BoardLayout } from "./boards.js";
import { GPU_TIMEOUT_MS, adapterName } from "./adapter.js";
import { $, showNotice, reason, sentence } from "./dom.js";

/** The largest picture that the CPU draws, in pixels. */
const MAX_PIXELS_2D = 700_000;
/** A second lost device within this time, in milliseconds, ends the use of the GPU. */
const SECOND_LOSS_MS = 10_000;

export class Stage {
  /** `onStale()` is called when the picture must be redrawn. */
  constructor(box, onStale) {
    Object.assign(this, { box, onStale });
    this.size = [1, 1]; // in the device's pixels
    this.pageWidth = 1; // in the page's, remembered: to ask the canvas has the browser lay out the page
    this.label = "The game";
    this.lostAt = -Infinity;
    const observer = new ResizeObserver(([entry]) => this.resize(entry));
    try {
      observer.observe(this.addHolder(), { box: "device-pixel-content-box" });
    } catch {
      observer.observe(this.holder); // Safari knows no other box
    }
  }

  /** The element that contains the canvas and determines its size. */
  addHolder() {
    this.holder = document.createElement("div");
    this.holder.className = "canvas";
    this.box.append(this.holder);
    return this.holder;
  }

  /** Sets the accessible name of the picture. */
  setLabel(label) {
    this.label = label;
    this.holder.firstChild?.setAttribute("aria-label", label);
  }

  /** Opens the screen on a new canvas, since a canvas keeps its kind of context. */
  async open(gpu = true) {
    const canvas = document.createElement("canvas");
    canvas.setAttribute("role", "img");
    [canvas.width, canvas.height] = this.size;
    try {
      if (gpu && !navigator.gpu) throw new Error("This browser has no WebGPU.");
      const screen = await withTimeout(Screen.open(canvas, gpu));
      if (gpu) this.adapter = await adapterName();
      this.screen?.free();
      this.screen = screen;
    } catch (error) {
      if (!gpu) throw error;
      // The rest of the message lists backends that no page has.
      this.reason = sentence(reason(error).split(";")[0]);
      return this.screen?.api() === "2D canvas" ? this.showRenderer() : this.open(false);
    }
    canvas.setAttribute("aria-label", this.label); // which may have changed meanwhile
    this.holder.replaceChildren(canvas);
    this.fitScreen();
    this.showRenderer();
  }

  /** Shows the renderer and its adapter, and why it is not WebGPU. */
  showRenderer() {
    const api = this.screen.api();
    $("renderer-note").textContent = api !== "WebGPU" && this.reason ? `Without WebGPU: drawn on a 2D canvas. ${this.reason}` : "";
    $("stat-screen").textContent = api === "WebGPU" ? `${api}, ${this.adapter}` : api;
  }

  resize(entry) {
    const exactSize = entry.devicePixelContentBoxSize?.[0];
    const ratio = window.devicePixelRatio;
    this.pageWidth = entry.contentRect.width;
    this.size = exactSize
      ? [exactSize.inlineSize, exactSize.blockSize]
      : [entry.contentRect.width, entry.contentRect.height].map((side) => Math.round(side * ratio));
    this.fitScreen();
  }

  fitScreen() {
    if (!this.screen || this.size[0] < 1 || this.size[1] < 1) return;
    const [width, height] = this.size;
    // The CPU draws fewer pixels than the device has, if those are many.
    const scale = this.screen.api() === "WebGPU" ? 1 : 1 / Math.ceil(Math.sqrt((width * height) / MAX_PIXELS_2D));
    this.screen.resize(Math.round(width * scale), Math.round(height * scale));
    this.onStale();
  }

  /** The layout of the boards; undefined before there is a picture. */
  layout(show) {
    const canvas = this.holder.firstChild;
    return canvas && new BoardLayout(show, canvas, this.pageWidth / canvas.width);
  }

  /** The number of the board at a point of the page, which may be beyond the last; undefined beside all of them. */
  boardAt(show, { clientX, clientY }) {
    const box = this.holder.getBoundingClientRect();
    return this.layout(show)?.boardAt(clientX - box.left, clientY - box.top);
  }

  /** Draws the show, unless the screen is still opening; returns whether it did. */
  draw(show, part) {
    if (!this.screen || this.isOpening) return false;
    if (this.screen.lost() === undefined) {
      try {
        this.screen.draw(show, part);
        return true;
      } catch {
        // The device was lost meanwhile.
      }
    }
    this.recover();
    return false;
  }

  /** Continues on another device after a loss; on the CPU after a second one soon. */
  async recover() {
    const isFirstLoss = performance.now() - this.lostAt > SECOND_LOSS_MS;
    this.lostAt = performance.now();
    this.reason = "The GPU stopped responding.";
    this.isOpening = true;
    try {
      await this.open(isFirstLoss && this.screen.api() === "WebGPU");
      showNotice(`The GPU stopped responding; continuing on ${this.screen.api() === "WebGPU" ? "a new device" : "the CPU"}.`);
      this.isOpening = false;
    } catch (error) {
      showNotice(`Nothing can be drawn any more: ${sentence(error)} Please reload the page.`);
    }
    this.onStale();
  }
}

/** Waits for the screen to open; an error after a timeout. */
function withTimeout(opening) {
  return new Promise((done, fail) => {
    const timer = setTimeout(() => {
      fail(new Error("The GPU does not answer."));
      opening.then((screen) => screen.free(), () => {});
    }, GPU_TIMEOUT_MS);
    opening.then(done, fail).finally(() => clearTimeout(timer));
  });
}
