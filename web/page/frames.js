// Frames: everything due is drawn in one frame of the browser, since most of a frame's cost is the browser's own.

/** The least time between two frames in milliseconds, to leave the processors to training. */
let least = 0;
let last = -Infinity;
let asked = false;
const waiting = new Set();

/** Calls `draw(now)` in the next frame, once, however often it is requested. */
export function inFrame(draw) {
  waiting.add(draw);
  if (asked) return;
  asked = true;
  const rest = last + least - performance.now();
  if (rest > 0) setTimeout(request, rest);
  else request();
}

/** Cancels a request. */
export const notInFrame = (draw) => waiting.delete(draw);

/** Sets the least time between two frames. */
export function pace(milliseconds) {
  least = milliseconds;
}

function request() {
  requestAnimationFrame((now) => {
    asked = false;
    last = performance.now();
    const due = [...waiting];
    waiting.clear();
    for (const draw of due) {
      try {
        draw(now);
      } catch (error) {
        reportError(error); // the others are drawn nevertheless
      }
    }
  });
}
