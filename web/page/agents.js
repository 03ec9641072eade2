// The agents for the stage: the built-in one, files, and policies in training.

import { make, setText, showNotice, sentence } from "./dom.js";

/** The order of the list, by kind. */
const ORDER = ["ready", "untrained", "kept", "link", "file", "here", "best", "newest"];

export class Agents {
  /** `put(file)` puts a policy file on the stage, or throws; `onChange()` is called once another agent is chosen. */
  constructor(select, put, onChange) {
    Object.assign(this, { select, put, onChange });
    this.byId = new Map();
    this.onList = () => {}; // called when the list or a label changes
    this.onRenew = () => {}; // called with the id of an agent that has a newer policy
    select.addEventListener("change", () => {
      try {
        this.choose(select.value);
      } catch (error) {
        showNotice(sentence(error));
      }
    });
  }

  /** Adds an agent, or a newer policy of one; on the stage it takes effect at once. `boardName` names it over a board. */
  offer(id, label, file, boardName = label) {
    this.byId.set(id, { label, file, boardName });
    this.onRenew(id);
    this.showList();
    if (this.chosenId === id) this.put(file);
  }

  /** Adds an agent from a file, and returns its id. The files of all runs have one name, so another of that name gets a number. */
  offerFile(name, file) {
    const isOther = (id) => this.byId.has(id) && `${this.byId.get(id).file}` !== `${file}`;
    let label = name;
    for (let i = 2; isOther(`file ${label}`); i += 1) label = `${name} (${i})`;
    this.offer(`file ${label}`, `File ${label}`, file);
    return `file ${label}`;
  }

  withdraw(id) {
    this.byId.delete(id);
    this.showList();
  }

  /** Puts an agent on the stage. */
  choose(id) {
    try {
      this.put(this.byId.get(id).file);
      this.chosenId = id;
    } finally {
      this.select.value = this.chosenId;
      this.onList();
    }
    this.onChange();
  }

  /** The policy file on the stage. */
  file() {
    return this.byId.get(this.chosenId)?.file;
  }

  /** The agents in order. */
  sortedIds() {
    const place = (id) => ORDER.indexOf(id.split(" ")[0]);
    return [...this.byId.keys()].sort((a, b) => place(a) - place(b) || a.localeCompare(b, "en", { numeric: true }));
  }

  showList() {
    const ids = this.sortedIds();
    if (ids.join() !== this.listedIds) {
      this.listedIds = ids.join();
      this.select.replaceChildren(...ids.map((id) => make("option", { value: id })));
      this.select.value = this.chosenId;
    }
    for (const option of this.select.options) setText(option, this.byId.get(option.value).label);
    this.onList();
  }
}
