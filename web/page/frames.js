// Frames: everything due is drawn in one frame of the browser, since most of a frame's cost is the browser's own.

/** The least time between two frames in milliseconds, to leave the processors to training. */
let minFrameMs = 0;
let lastFrameAt = -Infinity;
let isRequested = false;
const waitingDraws = new Set();

/** Calls `draw(now)` in the next frame, once, however often it is requested. */
export function drawInFrame(draw) {
  waitingDraws.add(draw);
  if (isRequested) return;
  isRequested = true;
  const waitMs = lastFrameAt + minFrameMs - performance.now();
  if (waitMs > 0) setTimeout(requestFrame, waitMs);
  else requestFrame();
}

/** Cancels a request. */
export const cancelDraw = (draw) => waitingDraws.delete(draw);

/** Sets the least time between two frames. */
export function setMinFrameMs(milliseconds) {
  minFrameMs = milliseconds;
}

function requestFrame() {
  requestAnimationFrame((now) => {
    isRequested = false;
    lastFrameAt = performance.now();
    const dueDraws = [...waitingDraws];
    waitingDraws.clear();
    for (const draw of dueDraws) {
      try {
        draw(now);
      } catch (error) {
        reportError(error); // the others are drawn nevertheless
      }
    }
  });
}
