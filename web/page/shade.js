// A large wall of games: each board is shaded by its last score.

import { $, formatScore, setText } from "./dom.js";

/** The number of games from which on boards are shaded. */
const MIN_SHADED_GAMES = 256;
/** Milliseconds between two updates. */
const UPDATE_MS = 200;

let drawnAt = 0;

/** Shades the boards of a show by their last scores. */
export function shadeBoards(show, count, layout) {
  const canvas = $("shade");
  canvas.hidden = $("shade-how").hidden = count < MIN_SHADED_GAMES;
  if (canvas.hidden || performance.now() - drawnAt < UPDATE_MS) return;
  drawnAt = performance.now();
  const { clientWidth, clientHeight } = canvas.parentElement;
  if (canvas.width !== clientWidth || canvas.height !== clientHeight) Object.assign(canvas, { width: clientWidth, height: clientHeight });
  const scores = show.last_scores();
  const finiteScores = scores.filter(Number.isFinite);
  const low = finiteScores.reduce((a, b) => Math.min(a, b), Infinity);
  const high = finiteScores.reduce((a, b) => Math.max(a, b), -Infinity);
  const range = low < high ? `, from ${formatScore(low)} (orange) to ${formatScore(high)} (green)` : low === high ? `, ${formatScore(low)} in every game` : "";
  setText($("shade-how"), `Colour: last score${range}.`);
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  scores.forEach((score, i) => {
    if (!Number.isFinite(score)) return;
    const share = high > low ? (score - low) / (high - low) : 1;
    context.fillStyle = `hsl(${30 + 105 * share} 75% ${52 - 14 * share}% / 72%)`;
    const { left, top, width, height } = layout.rectangle(i);
    context.fillRect(left, top, width, height);
  });
}
