// Policies side by side: the list of policies, their names over the boards, and their scores.

import { Policy } from "./watch.js";
import { $, make, setText, formatMean, showNotice, formatScore, sentence } from "./dom.js";

/** The largest number of policies beside the first; as in web/watch/src/beside.rs. */
const MAX_RIVALS = 7;

/** The name of a policy file's game, read from its header alone: many files arrive during training. */
function gameOf(file) {
  const length = Number(new DataView(file.buffer, file.byteOffset).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(file.subarray(8, 8 + length)));
  return /^\s*env\s*=\s*["']([^"']+)["']/m.exec(JSON.parse(header.__metadata__.grove).config)?.[1];
}

export class Rivals {
  /** `set(policies)` puts these beside the agent on the stage, `renew(i, policy)` replaces the one at place `i` of
      them; both throw if they cannot. */
  constructor(agents, { set, renew }) {
    Object.assign(this, { agents, set, renew });
    this.chosenIds = []; // of the agents beside the one on the stage
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
    const stagedId = this.agents.chosenId;
    const isGone = (id) => id === stagedId || !this.agents.byId.has(id);
    if (this.chosenIds.some(isGone)) this.placeAgents(this.chosenIds.filter((id) => !isGone(id)));
    const otherIds = this.agents.sortedIds().filter((id) => id !== stagedId && gameOf(this.agents.byId.get(id).file) === this.env);
    $("beside").hidden = otherIds.length === 0;
    const ids = [stagedId, ...otherIds];
    if (ids.join() !== this.listedIds) {
      this.listedIds = ids.join();
      const focusedId = $("rivals").contains(document.activeElement) && document.activeElement.value;
      $("rivals").replaceChildren(...ids.map((id, i) => make("li", {},
        make("label", {}, make("input", { type: "checkbox", value: id, checked: i === 0 || this.chosenIds.includes(id), disabled: i === 0 }), make("span")),
        make("output", { "aria-live": "off" })))); // it changes all the time
      [...$("rivals").querySelectorAll("input")].find(({ value }) => value === focusedId)?.focus();
    }
    this.labelBoards();
    [...$("rivals").querySelectorAll("span")].forEach((span, i) => setText(span, this.agents.byId.get(ids[i])?.label ?? ""));
  }

  /** Puts the newest policy of a ticked agent on its board, which it leaves if that policy plays another game. */
  update(id) {
    const i = this.chosenIds.indexOf(id);
    if (i < 0) return;
    const policy = new Policy(this.agents.byId.get(id).file);
    try {
      this.renew(i, policy);
    } catch {
      this.placeAgents(this.chosenIds.filter((chosenId) => chosenId !== id));
    } finally {
      policy.free();
    }
  }

  /** Puts the policies of the ticked agents on their boards. */
  choose() {
    this.placeAgents([...$("rivals").querySelectorAll("input:checked:not(:disabled)")].map(({ value }) => value));
  }

  /** Puts these agents beside the one on the stage. */
  placeAgents(tickedIds) {
    const formerIds = this.chosenIds;
    this.chosenIds = tickedIds;
    try {
      if (tickedIds.length > MAX_RIVALS) throw new Error(`At most ${MAX_RIVALS} policies play beside another.`);
      this.set(tickedIds.map((id) => new Policy(this.agents.byId.get(id).file)));
    } catch (error) {
      this.chosenIds = formerIds;
      showNotice(sentence(error));
    }
    for (const input of $("rivals").querySelectorAll("input:not(:disabled)")) input.checked = this.chosenIds.includes(input.value);
    this.labelBoards();
  }

  /** Removes all policies beside the agent. */
  end() {
    this.chosenIds = [];
    this.listedIds = undefined;
    this.showList();
  }

  /** Labels the boards, if the labels are others: new ones have no place until the next picture. */
  labelBoards() {
    const ids = this.chosenIds.length > 0 ? [this.agents.chosenId, ...this.chosenIds] : [];
    const boardNames = ids.map((id) => this.agents.byId.get(id)?.boardName);
    if (boardNames.join("\n") === this.shownNames) return;
    this.shownNames = boardNames.join("\n");
    $("names").replaceChildren(...boardNames.map((name) => make("p", { className: "who" }, make("span", { textContent: name }), make("strong"))));
  }

  /** Shows the current scores over the boards, and the means in the list. */
  show(report, layout) {
    const reports = [report, ...report.beside];
    const outputs = new Map([...$("rivals").children].map((row) => [row.querySelector("input").value, row.querySelector("output")]));
    [this.agents.chosenId, ...this.chosenIds].forEach((id, i) => {
      const { mean_score: mean, error, finished } = reports[i] ?? {};
      const hasMean = this.chosenIds.length > 0 && Number.isFinite(mean);
      if (outputs.has(id)) setText(outputs.get(id), hasMean ? `${formatMean(mean, error)} of ${finished}` : "");
    });
    const names = [...$("names").children];
    names.forEach((name, i) => setText(name.lastChild, formatScore(reports[i]?.score)));
    layout.placeNames(names);
  }
}
