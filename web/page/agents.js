// The agents for the stage: the built-in one, files, and policies in training.

import { make, write, say, sentence } from "./dom.js";

/** The order of the list, by kind. */
const ORDER = ["ready", "untrained", "kept", "link", "file", "here", "best", "newest"];

export class Agents {
  /** `put(file)` puts a policy file on the stage, or throws; `changed()` is called once another agent is chosen. */
  constructor(select, put, changed) {
    Object.assign(this, { select, put, changed });
    this.all = new Map();
    this.onList = () => {}; // called when the list or a label changes
    this.onRenew = () => {}; // called with the id of an agent that has a newer policy
    select.addEventListener("change", () => {
      try {
        this.choose(select.value);
      } catch (error) {
        say(sentence(error));
      }
    });
  }

  /** Adds an agent, or a newer policy of one; on the stage it takes effect at once. `boardName` names it over a board. */
  offer(id, label, file, boardName = label) {
    this.all.set(id, { label, file, boardName });
    this.onRenew(id);
    this.showList();
    if (this.chosen === id) this.put(file);
  }

  withdraw(id) {
    this.all.delete(id);
    this.showList();
  }

  /** Puts an agent on the stage. */
  choose(id) {
    try {
      this.put(this.all.get(id).file);
      this.chosen = id;
    } finally {
      this.select.value = this.chosen;
      this.onList();
    }
    this.changed();
  }

  /** The policy file on the stage. */
  file() {
    return this.all.get(this.chosen)?.file;
  }

  /** The agents in order. */
  sortedIds() {
    const place = (id) => ORDER.indexOf(id.split(" ")[0]);
    return [...this.all.keys()].sort((a, b) => place(a) - place(b) || a.localeCompare(b, "en", { numeric: true }));
  }

  showList() {
    const ids = this.sortedIds();
    if (ids.join() !== this.listedIds) {
      this.listedIds = ids.join();
      this.select.replaceChildren(...ids.map((id) => make("option", { value: id })));
      this.select.value = this.chosen;
    }
    for (const option of this.select.options) write(option, this.all.get(option.value).label);
    this.onList();
  }
}
