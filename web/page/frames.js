// When pictures are drawn: all that are due come in one frame of the browser, most of whose cost is the browser's own.

/** Milliseconds between two frames at least, where others need the processors more. */
let least = 0;
let last = -Infinity;
let asked = false;
const waiting = new Set();

/** Calls this once, with the time, in the next frame, however often it is asked for. */
export function inFrame(draw) {
  waiting.add(draw);
  if (asked) return;
  asked = true;
  const rest = last + least - performance.now();
  if (rest > 0) setTimeout(request, rest);
  else request();
}

/** Calls this no more. */
export const notInFrame = (draw) => waiting.delete(draw);

/** Leaves so many milliseconds between two frames from now on. */
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
