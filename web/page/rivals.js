// Policies side by side: the list of policies, their names over the boards, and their scores.

import { Policy } from "./watch.js";
import { $, make, write, fixed, say, score, sentence } from "./dom.js";

/** The largest number of policies beside the first; as in web/watch/src/beside.rs. */
const MAX_RIVALS = 7;

/** The name of a policy file's game, read from its header alone: many files arrive during training. */
function gameOf(file) {
  const length = Number(new DataView(file.buffer, file.byteOffset).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(file.subarray(8, 8 + length)));
  return /^env = "([^"]+)"/m.exec(JSON.parse(header.__metadata__.grove).config)?.[1];
}

export class Rivals {
  /** `set(policies)` puts these beside the agent on the stage, `renew(i, policy)` replaces the one at place `i` of
      them; both throw if they cannot. */
  constructor(agents, { set, renew }) {
    Object.assign(this, { agents, set, renew });
    this.chosen = []; // their ids
    agents.onList = () => this.showList();
    agents.onRenew = (id) => this.update(id);
    $("rivals").addEventListener("change", () => this.choose());
  }

  /** Sets the game on the stage. */
  setGame(env) {
    this.env = env;
    this.showList();
  }

  /** Lists the agents of the game on the stage, the current one first. */
  showList() {
    const own = this.agents.chosen;
    const gone = (id) => id === own || !this.agents.all.has(id);
    if (this.chosen.some(gone)) this.placeAgents(this.chosen.filter((id) => !gone(id)));
    const others = this.agents.sortedIds().filter((id) => id !== own && gameOf(this.agents.all.get(id).file) === this.env);
    $("beside").hidden = others.length === 0;
    const ids = [own, ...others];
    if (ids.join() !== this.listedIds) {
      this.listedIds = ids.join();
      const focused = $("rivals").contains(document.activeElement) && document.activeElement.value;
      $("rivals").replaceChildren(...ids.map((id, i) => make("li", {},
        make("label", {}, make("input", { type: "checkbox", value: id, checked: i === 0 || this.chosen.includes(id), disabled: i === 0 }), make("span")),
        make("output", { "aria-live": "off" })))); // it changes all the time
      [...$("rivals").querySelectorAll("input")].find(({ value }) => value === focused)?.focus();
    }
    this.labelBoards();
    [...$("rivals").querySelectorAll("span")].forEach((span, i) => write(span, this.agents.all.get(ids[i])?.label ?? ""));
  }

  /** Puts the newest policy of a ticked agent on its board, which it leaves if that policy plays another game. */
  update(id) {
    const i = this.chosen.indexOf(id);
    if (i < 0) return;
    const policy = new Policy(this.agents.all.get(id).file);
    try {
      this.renew(i, policy);
    } catch {
      this.placeAgents(this.chosen.filter((one) => one !== id));
    } finally {
      policy.free();
    }
  }

  /** Puts the policies of the ticked agents on their boards. */
  choose() {
    this.placeAgents([...$("rivals").querySelectorAll("input:checked:not(:disabled)")].map(({ value }) => value));
  }

  /** Puts these agents beside the one on the stage. */
  placeAgents(ticked) {
    const before = this.chosen;
    this.chosen = ticked;
    try {
      if (ticked.length > MAX_RIVALS) throw new Error(`At most ${MAX_RIVALS} policies play beside another.`);
      this.set(ticked.map((id) => new Policy(this.agents.all.get(id).file)));
    } catch (error) {
      this.chosen = before;
      say(sentence(error));
    }
    for (const input of $("rivals").querySelectorAll("input:not(:disabled)")) input.checked = this.chosen.includes(input.value);
    this.labelBoards();
  }

  /** Removes all policies beside the agent. */
  end() {
    this.chosen = [];
    this.listedIds = undefined;
    this.showList();
  }

  /** Labels the boards, if the labels are others: new ones have no place until the next picture. */
  labelBoards() {
    const ids = this.chosen.length > 0 ? [this.agents.chosen, ...this.chosen] : [];
    const boardNames = ids.map((id) => this.agents.all.get(id)?.boardName);
    if (boardNames.join("\n") === this.shownNames) return;
    this.shownNames = boardNames.join("\n");
    $("names").replaceChildren(...boardNames.map((name) => make("p", { className: "who" }, make("span", { textContent: name }), make("strong"))));
  }

  /** Shows the current scores over the boards, and the means in the list. */
  show(report, layout) {
    const all = [report, ...report.beside];
    const outputs = new Map([...$("rivals").children].map((row) => [row.querySelector("input").value, row.querySelector("output")]));
    [this.agents.chosen, ...this.chosen].forEach((id, i) => {
      const { mean_score: mean, error, finished } = all[i] ?? {};
      const known = this.chosen.length > 0 && Number.isFinite(mean);
      if (outputs.has(id)) write(outputs.get(id), known ? `${fixed(mean)}${error === null ? "" : ` ± ${fixed(error)}`} of ${finished}` : "");
    });
    const names = [...$("names").children];
    names.forEach((name, i) => write(name.lastChild, score(all[i]?.score ?? NaN)));
    layout.placeNames(names);
  }
}
