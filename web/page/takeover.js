// Taking over: by holding Shift or by a button, and the person's keys.

import { $, make, write, score } from "./dom.js";

/** Milliseconds to hold Shift, which distinguishes it from a shortcut such as Shift and Tab. */
const HOLD_MS = 250;
/** Milliseconds of one count of the countdown, and its start. */
const COUNTDOWN_STEP_MS = 500;
const COUNTDOWN_START = 3;
/** Directions by key; an action that ends in a direction is steered by its keys. */
const DIRECTION_KEYS = { ArrowLeft: "left", KeyA: "left", ArrowRight: "right", KeyD: "right", ArrowUp: "up", KeyW: "up", ArrowDown: "down", KeyS: "down" };
const ARROWS = { left: "←", right: "→", up: "↑", down: "↓" };
/** Whether an action's name ends in a direction. */
const endsInDirection = (name, side) => new RegExp(`\\b${side}$`).test(name);

export class Takeover {
  /** Calls back `change(on)` when a person takes over or leaves, `go(on)` when the game runs or waits, and `next()`
      when both players start the next level. */
  constructor(callbacks) {
    this.callbacks = callbacks;
    this.on = false;
    this.heldActions = []; // sides or numbers of actions, the newest last
    this.tapped = undefined; // pressed and let go between two steps
    addEventListener("keydown", (event) => this.keyDown(event));
    addEventListener("keyup", (event) => this.keyUp(event));
    addEventListener("blur", () => this.releaseAll());
    $("next-level").addEventListener("click", () => this.startNextLevel());
    $("takeover").addEventListener("click", () => { this.byShift = false; this.setOn(!this.on); });
    this.connectPointer($("stage"), (event, box) => (event.clientX < box.left + box.width / 2 ? "left" : "right"));
  }

  /** Offers a button for each action of a game, and names the keys that steer it. */
  setGame(actions) {
    if (`${actions}` === `${this.actions}`) return;
    this.actions = actions;
    const arrow = (name) => Object.entries(ARROWS).find(([side]) => endsInDirection(name, side))?.[1];
    $("pads").replaceChildren(...actions.map((name, i) => {
      const pad = make("button", { type: "button" }, name, make("kbd", { textContent: arrow(name) ?? `${i + 1}`, "aria-hidden": "true" }));
      this.connectPointer(pad, () => i);
      // Clicks by a key or a screen reader; a pointer has pressed the button already.
      pad.addEventListener("click", (event) => { if (event.detail === 0 && this.on) this.tapped = i; });
      return pad;
    }));
    const keys = [...new Set([...actions.map(arrow).filter(Boolean), ...(actions.some(arrow) ? [] : [`1 to ${Math.min(9, actions.length)}`])])];
    const named = keys.flatMap((key) => [make("kbd", { textContent: key }), " "]);
    $("takeover-how").replaceChildren(
      make("span", { className: "keys" }, "Hold ", make("kbd", { textContent: "Shift" }), " or press the button, then steer with ", ...named),
    );
  }

  keyDown(event) {
    clearTimeout(this.shiftTimer);
    if (event.key === "Shift" && !event.repeat && !this.on && !isTyping() && $("takeover").getClientRects().length > 0) {
      this.shiftTimer = setTimeout(() => { this.byShift = true; this.setOn(true); }, HOLD_MS);
    }
    if (event.key === "Escape" && this.on) { this.byShift = false; this.setOn(false); }
    const side = isShortcut(event) ? undefined : actionOfKey(event);
    if (!this.on || side === undefined || isTyping()) return;
    event.preventDefault();
    if (!event.repeat) this.press(side);
  }

  keyUp(event) {
    if (event.key === "Shift") this.releaseShift();
    // On a Mac, keys that are let go beside this one are not reported.
    if (event.key === "Meta") this.heldActions = [];
    this.release(actionOfKey(event));
  }

  /** Lets go of all keys: while the page has no focus, nothing says that they are released. */
  releaseAll() {
    this.heldActions = [];
    this.tapped = undefined;
    this.releaseShift();
  }

  releaseShift() {
    clearTimeout(this.shiftTimer);
    if (this.on && this.byShift) this.setOn(false);
  }

  connectPointer(element, side) {
    const held = new Map();
    element.addEventListener("pointerdown", (event) => {
      if (!this.on) return;
      event.preventDefault();
      held.set(event.pointerId, side(event, element.getBoundingClientRect()));
      this.press(held.get(event.pointerId));
    });
    for (const end of ["pointerup", "pointercancel", "pointerleave"]) {
      element.addEventListener(end, (event) => {
        if (held.has(event.pointerId)) this.release(held.get(event.pointerId));
        held.delete(event.pointerId);
      });
    }
  }

  press(side) {
    this.heldActions.push(side);
    this.tapped = side;
  }

  release(side) {
    this.heldActions = this.heldActions.filter((other) => other !== side);
  }

  setOn(on) {
    this.on = on;
    this.heldActions = [];
    this.tapped = undefined;
    this.wins = [0, 0];
    this.isOver = false;
    write($("duel-last"), "");
    hideVerdict();
    $("duel").hidden = $("pads").hidden = !on;
    $("stage").classList.toggle("two", on);
    document.body.classList.toggle("duel", on);
    $("takeover").setAttribute("aria-pressed", `${on}`);
    write($("takeover"), on ? "Leave the game" : "Play it yourself");
    clearTimeout(this.countdownTimer);
    $("count").hidden = true;
    this.callbacks.change(on);
    if (on) this.countDown(COUNTDOWN_START);
  }

  /** Counts down, then runs the game. */
  countDown(left) {
    clearTimeout(this.countdownTimer);
    $("count").hidden = left === 0;
    write($("count"), `${left}`);
    this.callbacks.go(left === 0);
    if (left > 0) this.countdownTimer = setTimeout(() => this.countDown(left - 1), COUNTDOWN_STEP_MS);
  }

  /** Resets the duel after both have restarted. */
  restartRound(playing) {
    this.isOver = false;
    hideVerdict();
    write($("duel-last"), "");
    if (playing) this.countDown(COUNTDOWN_START);
  }

  /** Begins a duel in another game in place of this one. */
  startDuel(playing) {
    this.wins = [0, 0];
    this.restartRound(playing);
  }

  /** Starts the next level for both. */
  startNextLevel() {
    this.isOver = false;
    hideVerdict();
    this.callbacks.next();
    this.countDown(COUNTDOWN_START);
  }

  /** The person's next action: its index, or -1 for none. */
  action(actions) {
    const side = this.on ? this.heldActions.at(-1) ?? this.tapped : undefined;
    this.tapped = undefined;
    if (typeof side === "number") return side < actions.length ? side : -1;
    return side === undefined ? -1 : actions.findIndex((name) => endsInDirection(name, side));
  }

  /** Shows both scores, and the winner at the end of both games. */
  showScores({ score: agent, person, over }) {
    if (!this.on || !person) return;
    write($("duel-agent"), score(agent));
    write($("duel-person"), score(person.score));
    if (!over || this.isOver) return;
    this.isOver = true;
    this.wins[0] += agent > person.score;
    this.wins[1] += person.score > agent;
    const who = agent === person.score ? "A draw" : agent > person.score ? "The agent wins" : "You win";
    write($("duel-last"), `${who}, ${score(agent)} to ${score(person.score)}. Games won: agent ${this.wins[0]}, you ${this.wins[1]}.`);
    $("verdict").hidden = false;
    $("next-level").focus({ preventScroll: true });
  }

  /** Puts names over the boards. */
  placePlayers(layout) {
    layout.placeNames([...$("duel").querySelectorAll(".who")]);
  }
}

/** Hides the verdict; the focus on its button goes to the game. */
function hideVerdict() {
  if ($("verdict").contains(document.activeElement)) $("view").focus({ preventScroll: true });
  $("verdict").hidden = true;
}

/** The side or the action number (from 0) of a key; undefined for other keys. */
const actionOfKey = ({ code }) => DIRECTION_KEYS[code] ?? (/^Digit[1-9]$/.test(code) ? Number(code.at(-1)) - 1 : undefined);

/** Whether a key belongs to the browser, as in Ctrl and A. */
const isShortcut = ({ ctrlKey, metaKey, altKey }) => ctrlKey || metaKey || altKey;

/** Whether a field has the keyboard focus. */
const isTyping = () => document.activeElement?.matches("input:not([type=range], [type=radio], [type=checkbox]), textarea, select");
