// The state of the agent: its score beside the references, its probabilities, its observation.

import { $, make, setText, formatScore, formatFixed, formatMean } from "./dom.js";
import { HeatMaps, splitFeatures } from "./heat.js";

/** Milliseconds between two updates. */
const UPDATE_MS = 100;

/** A list of named bars; if it `isTwoSided`, bars extend from the middle to either side. */
class Bars {
  constructor(list, names, isTwoSided) {
    this.isTwoSided = isTwoSided;
    this.rows = names.map((name) => {
      const [bar, value] = [make("i"), make("b")];
      const row = make("li", {}, make("span", { textContent: name, title: name }), make("em", {}, bar), value);
      return { row, bar, value };
    });
    list.replaceChildren(...this.rows.map(({ row }) => row));
  }

  show(values, chosenIndex) {
    this.rows.forEach(({ row, bar, value }, i) => {
      const x = values[i] ?? 0;
      row.classList.toggle("clipped", Math.abs(x) > 1.0005);
      row.classList.toggle("low", x < 0);
      const length = Math.max(this.isTwoSided ? -1 : 0, Math.min(1, x)).toFixed(3);
      if (bar.length !== length) bar.style.transform = `scaleX(${(bar.length = length)})`;
      setText(value, this.isTwoSided ? formatFixed(x) : `${Math.round(100 * x)} %`);
      row.classList.toggle("chosen", i === chosenIndex);
    });
  }
}

/** A network in words. */
function describeNetwork({ kind, hidden, activation, num_layers: layers, hidden_size: size, context }) {
  if (kind === "decoder") return `Transformer: ${layers} ${layers === 1 ? "layer" : "layers"} of ${size} units, sees ${context} steps`;
  return `${hidden.join(" and ")} units${kind === "gru" ? " with a memory" : ""} (${activation})`;
}

export class Panel {
  constructor() {
    this.shownAt = -Infinity;
  }

  /** Describes the policy on the stage, whose network has these settings. */
  setPolicy(about, network) {
    // References depend on the parameters of a game, not on its name alone.
    const kind = JSON.stringify([about.title, about.actions, about.features, about.references]);
    this.about = about;
    this.shownAt = -Infinity;
    setText($("agent-about"), `${describeNetwork(network)}, ${about.num_params.toLocaleString("en")} parameters`);
    if (kind === this.policyKey) return;
    this.policyKey = kind;
    this.actions = new Bars($("probabilities"), about.actions, false);
    const { channels, otherIndices } = splitFeatures(about.features);
    this.maps = new HeatMaps($("maps"), channels);
    this.otherIndices = otherIndices;
    this.features = new Bars($("features"), otherIndices.map((i) => about.features[i]), true);
    $("senses-how").textContent = channels.size > 0 ? "Cells by value: blue is 1, orange −1, clear 0." : "Bars run from −1 to 1; an arrow marks a value beyond that.";
    setText($("rules"), about.rules);
    $("ruler-how").hidden = about.references.length < 2;
    $("references").replaceChildren(
      ...about.references.map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: formatScore(value) }))),
    );
  }

  /** Shows the state of the game, at most every `UPDATE_MS` milliseconds unless it `isUrgent`. */
  show(show, isUrgent = false) {
    if (!isUrgent && performance.now() - this.shownAt < UPDATE_MS) return;
    this.shownAt = performance.now();
    const report = JSON.parse(show.report());
    setText($("score"), formatScore(report.score));
    setText($("time"), `step ${report.time} of ${this.about.max_steps}, game ${report.episodes + 1}`);
    setText($("last"), formatScore(report.last_score));
    setText($("episodes"), `${report.finished.toLocaleString("en")} ${report.finished === 1 ? "game" : "games"}`);
    setText($("mean"), formatMean(report.mean_score, report.error));
    this.actions.show(report.probabilities, report.action);
    if ($("senses").open) {
      this.maps.show(report.features);
      this.features.show(this.otherIndices.map((i) => report.features[i]), -1);
    }
    this.showRuler(report);
    return report;
  }

  /** The mean score, once there is one, on a line from the worst to the best reference. */
  showRuler({ mean_score: mean }) {
    const box = $("ruler");
    const references = this.about.references;
    box.hidden = references.length < 2;
    if (box.hidden) return;
    const [low, high] = [references[0][1], references.at(-1)[1]];
    const place = (x) => `${(100 * Math.max(0, Math.min(1, (x - low) / (high - low)))).toFixed(1)}%`;
    if (this.rulerKey !== this.policyKey) {
      this.rulerKey = this.policyKey;
      this.mark = make("i", { className: "now" });
      box.replaceChildren(...references.map(([name, x]) => {
        const mark = make("i", { title: `${name} ${formatScore(x)}` });
        mark.style.left = place(x);
        return mark;
      }), this.mark);
    }
    this.mark.hidden = mean === null;
    this.mark.style.left = place(mean ?? low);
    const label = `${mean === null ? "" : `mean score ${formatScore(mean)}; `}${references.map(([name, x]) => `${name} ${formatScore(x)}`).join(", ")}`;
    if (box.getAttribute("aria-label") !== label) box.setAttribute("aria-label", label);
  }
}
