// A tab in the background: what went on there is said on the visitor's return.

import { announce } from "./dom.js";

/** Milliseconds in the background that are reported. */
const REPORTED_MS = 1000;

/** Announces on each return from the background what `describe()` said at its beginning, unless that is undefined. */
export function reportAbsences(describe) {
  let absence;
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) absence = { begunAt: performance.now(), message: describe() };
    else if (absence?.message && performance.now() - absence.begunAt > REPORTED_MS) announce(absence.message);
  });
}
