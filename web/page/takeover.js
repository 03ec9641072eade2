// Taking over: by holding Shift or by a button, and the person's keys.

import { $, make, setText, formatScore } from "./dom.js";

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
    this.isOn = false;
    this.heldActions = []; // sides or numbers of actions, the newest last
    this.tappedAction = undefined; // pressed and let go between two steps
    addEventListener("keydown", (event) => this.keyDown(event));
    addEventListener("keyup", (event) => this.keyUp(event));
    addEventListener("blur", () => this.releaseAll());
    $("next-level").addEventListener("click", () => this.startNextLevel());
    $("takeover").addEventListener("click", () => { this.isByShift = false; this.setOn(!this.isOn); });
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
      pad.addEventListener("click", (event) => { if (event.detail === 0 && this.isOn) this.tappedAction = i; });
      return pad;
    }));
    const keys = [...new Set([...actions.map(arrow).filter(Boolean), ...(actions.some(arrow) ? [] : [`1 to ${Math.min(9, actions.length)}`])])];
    const keyLabels = keys.flatMap((key) => [make("kbd", { textContent: key }), " "]);
    $("takeover-how").replaceChildren(
      make("span", { className: "keys" }, "Hold ", make("kbd", { textContent: "Shift" }), " or press the button, then steer with ", ...keyLabels),
    );
  }

  keyDown(event) {
    clearTimeout(this.shiftTimer);
    if (event.key === "Shift" && !event.repeat && !this.isOn && !isTyping() && $("takeover").getClientRects().length > 0) {
      this.shiftTimer = setTimeout(() => { this.isByShift = true; this.setOn(true); }, HOLD_MS);
    }
    if (event.key === "Escape" && this.isOn) { this.isByShift = false; this.setOn(false); }
    const side = isShortcut(event) ? undefined : actionOfKey(event);
    if (!this.isOn || side === undefined || isTyping()) return;
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
    this.tappedAction = undefined;
    this.releaseShift();
  }

  releaseShift() {
    clearTimeout(this.shiftTimer);
    if (this.isOn && this.isByShift) this.setOn(false);
  }

  connectPointer(element, side) {
    const sidesByPointer = new Map();
    element.addEventListener("pointerdown", (event) => {
      if (!this.isOn) return;
      event.preventDefault();
      sidesByPointer.set(event.pointerId, side(event, element.getBoundingClientRect()));
      this.press(sidesByPointer.get(event.pointerId));
    });
    for (const end of ["pointerup", "pointercancel", "pointerleave"]) {
      element.addEventListener(end, (event) => {
        if (sidesByPointer.has(event.pointerId)) this.release(sidesByPointer.get(event.pointerId));
        sidesByPointer.delete(event.pointerId);
      });
    }
  }

  press(side) {
    this.heldActions.push(side);
    this.tappedAction = side;
  }

  release(side) {
    this.heldActions = this.heldActions.filter((heldSide) => heldSide !== side);
  }

  setOn(isOn) {
    this.isOn = isOn;
    this.heldActions = [];
    this.tappedAction = undefined;
    this.wins = [0, 0];
    this.isOver = false;
    setText($("duel-last"), "");
    hideVerdict();
    $("duel").hidden = $("pads").hidden = !isOn;
    $("stage").classList.toggle("two", isOn);
    document.body.classList.toggle("duel", isOn);
    $("takeover").setAttribute("aria-pressed", `${isOn}`);
    setText($("takeover"), isOn ? "Leave the game" : "Play it yourself");
    this.endCountdown();
    this.callbacks.change(isOn);
    if (isOn) this.countDown(COUNTDOWN_START);
  }

  /** Ends the countdown; the game stays as it is. */
  endCountdown() {
    clearTimeout(this.countdownTimer);
    $("count").hidden = true;
  }

  /** Counts down, then runs the game. */
  countDown(count) {
    clearTimeout(this.countdownTimer);
    $("count").hidden = count === 0;
    setText($("count"), `${count}`);
    this.callbacks.go(count === 0);
    if (count > 0) this.countdownTimer = setTimeout(() => this.countDown(count - 1), COUNTDOWN_STEP_MS);
  }

  /** Resets the duel after both have restarted. */
  restartRound(isPlaying) {
    this.isOver = false;
    hideVerdict();
    setText($("duel-last"), "");
    if (isPlaying) this.countDown(COUNTDOWN_START);
  }

  /** Begins a duel in another game in place of this one. */
  startDuel(isPlaying) {
    this.wins = [0, 0];
    this.restartRound(isPlaying);
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
    const side = this.isOn ? this.heldActions.at(-1) ?? this.tappedAction : undefined;
    this.tappedAction = undefined;
    if (typeof side === "number") return side < actions.length ? side : -1;
    return side === undefined ? -1 : actions.findIndex((name) => endsInDirection(name, side));
  }

  /** Shows both scores, and the winner at the end of both games. */
  showScores({ score: agent, person, over }) {
    if (!this.isOn || !person) return;
    setText($("duel-agent"), formatScore(agent));
    setText($("duel-person"), formatScore(person.score));
    if (!over || this.isOver) return;
    this.isOver = true;
    this.wins[0] += agent > person.score;
    this.wins[1] += person.score > agent;
    const verdict = agent === person.score ? "A draw" : agent > person.score ? "The agent wins" : "You win";
    setText($("duel-last"), `${verdict}, ${formatScore(agent)} to ${formatScore(person.score)}. Games won: agent ${this.wins[0]}, you ${this.wins[1]}.`);
    $("verdict").hidden = false;
    if (!isTyping()) $("next-level").focus({ preventScroll: true });
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
