// Taking over: Shift held or a button, and what the person's fingers say.

import { $, write, score } from "./dom.js";

/** Shift held for this many milliseconds alone: Shift and Tab is another matter. */
const HELD = 180;
const SIDES = { ArrowLeft: "left", KeyA: "left", ArrowRight: "right", KeyD: "right" };

export class Takeover {
  /** `change(on)` is called when a person takes over or leaves. */
  constructor(change) {
    this.change = change;
    this.on = false;
    this.held = []; // sides, the newest last
    this.tapped = undefined; // pressed and let go between two steps
    addEventListener("keydown", (event) => this.down(event));
    addEventListener("keyup", (event) => this.up(event));
    addEventListener("blur", () => this.leaveShift());
    $("takeover").addEventListener("click", () => { this.byShift = false; this.set(!this.on); });
    for (const side of ["left", "right"]) this.touch($(`pad-${side}`), () => side);
    this.touch($("stage"), (event, box) => (event.clientX < box.left + box.width / 2 ? "left" : "right"));
  }

  down(event) {
    clearTimeout(this.timer);
    if (event.key === "Shift" && !event.repeat && !this.on && !writing()) {
      this.timer = setTimeout(() => { this.byShift = true; this.set(true); }, HELD);
    }
    if (event.key === "Escape" && this.on) this.set(false);
    const side = SIDES[event.code];
    if (!this.on || !side || writing()) return;
    event.preventDefault();
    if (!event.repeat) this.press(side);
  }

  up(event) {
    if (event.key === "Shift") this.leaveShift();
    if (SIDES[event.code]) this.release(SIDES[event.code]);
  }

  leaveShift() {
    clearTimeout(this.timer);
    if (this.on && this.byShift) this.set(false);
  }

  touch(element, side) {
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
    this.held.push(side);
    this.tapped = side;
  }

  release(side) {
    this.held = this.held.filter((other) => other !== side);
  }

  set(on) {
    this.on = on;
    this.held = [];
    this.tapped = undefined;
    this.wins = [0, 0];
    this.over = false;
    write($("duel-last"), "");
    $("duel").hidden = $("pads").hidden = !on;
    $("stage").classList.toggle("two", on);
    $("takeover").ariaPressed = `${on}`;
    write($("takeover"), on ? "Leave the game" : "Take over");
    this.change(on);
  }

  /** The person's action for the next step: its index, or -1 for none. */
  action(actions) {
    const side = this.on ? this.held.at(-1) ?? this.tapped : undefined;
    this.tapped = undefined;
    return side === undefined ? -1 : actions.findIndex((name) => name.endsWith(side));
  }

  /** Shows the two scores. */
  compare({ score: agent, ended, person }) {
    if (!this.on || !person) return;
    write($("duel-agent"), score(agent));
    write($("duel-person"), score(person.score));
    const over = ended && person.ended;
    if (over && !this.over) {
      this.wins[0] += agent > person.score;
      this.wins[1] += person.score > agent;
      const who = agent === person.score ? "A draw" : agent > person.score ? "The agent wins" : "You win";
      write($("duel-last"), `${who}, ${score(agent)} to ${score(person.score)}. Games won: the agent ${this.wins[0]}, you ${this.wins[1]}.`);
    }
    this.over = over;
  }
}

/** Whether keys go into a field. */
const writing = () => document.activeElement?.matches("input:not([type=range], [type=radio], [type=checkbox]), textarea, select");
