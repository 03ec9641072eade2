// The settings of a training as a form: the library's names and defaults, and limits that a tab can bear.

import { $, make } from "./dom.js";
import { readToml, writeToml, settingAt } from "./toml.js";

/** Steps of all games of an iteration, at most, and numbers in their observations: a module's memory has at most 4
    GB, and each array half of that. */
const MAX_STEPS = 1 << 22;
const MAX_OBSERVED = 1 << 28;

/** The fields: name in the link, label, limits, and paths of the settings that they set. */
const FIELDS = [
  { id: "rate", label: "Learning rate", min: 1e-6, max: 0.1, step: "any", paths: ["optimizer.learning_rate"] },
  { id: "groups", label: "Groups", min: 1, max: 4096, step: 1, paths: ["rollout.num_groups"] },
  { id: "size", label: "Group size", min: 2, max: 64, step: 1, paths: ["rollout.group_size"] },
  { id: "steps", label: "Steps", min: 2, max: 512, step: 1, paths: ["rollout.num_steps"] },
  { id: "width", label: "Width", min: 4, max: 256, step: 1, paths: ["policy.hidden"] },
  { id: "layers", label: "Layers", min: 1, max: 2, step: 1, paths: ["policy.hidden"] },
  { id: "epochs", label: "Epochs", min: 1, max: 16, step: 1, paths: ["update.update_epochs"] },
  { id: "clip", label: "Clip", min: 0.01, max: 1, step: "any", paths: ["loss.clip_eps_low", "loss.clip_eps_high"] },
  { id: "entropy", label: "Entropy bonus", min: 0, max: 1, step: "any", paths: ["loss.entropy_coef"] },
  { id: "kl", label: "KL", min: 0, max: 1, step: "any", paths: ["loss.kl_coef"] },
  { id: "iterations", label: "Iterations", min: 1, max: 10_000, step: 1, paths: ["iterations"] },
  { id: "first", label: "First seed", min: 0, max: 2 ** 32 - 1, step: 1, paths: ["seed"] },
  { id: "seeds", label: "Seeds at once", min: 1, max: 8, step: 1, paths: [] },
];

/** The device to train on; auto is WebGPU on a real GPU, else the CPU. */
const DEVICES = ["auto", "WebGPU", "CPU"];

export class Settings {
  /** `onChange()` is called when the visitor changes one. */
  constructor(onChange) {
    this.inputs = {};
    this.keptChanges = new Map(); // of each game what the visitor has set, by the fields' names
    for (const { id, label, min, max, step } of FIELDS) {
      const input = make("input", { type: "number", id: `set-${id}`, name: id, required: true, min, max, step });
      const note = make("small", { id: `set-${id}-note`, className: "trouble", hidden: true });
      input.setAttribute("aria-describedby", note.id);
      input.addEventListener("input", () => { this.checkField(id); this.keptChanges.set(this.game, this.changes()); onChange(); });
      this.inputs[id] = { input, note };
      $("fields").append(make("label", { htmlFor: input.id, textContent: label }, input, note));
    }
    const device = make("select", { id: "set-device", name: "device" }, ...DEVICES.map((name) => make("option", { textContent: name })));
    device.addEventListener("change", () => onChange());
    $("fields").append(make("label", { htmlFor: device.id, textContent: "Device" }, device));
    this.deviceInput = device;
  }

  /** Puts in the defaults of a game, `{ name, settings, features }` (`settings` is TOML), overlaid with the values
      of a link, as if the visitor had set them, or without one with those that the visitor has set. The device is
      the same for all games until a link says otherwise. */
  fill({ name, settings, features }, link) {
    const values = link ?? this.keptChanges.get(name) ?? {};
    this.game = name;
    this.defaults = readToml(settings);
    this.maxSteps = Math.min(MAX_STEPS, Math.floor(MAX_OBSERVED / features.length));
    this.setValues(values);
    if (!link) return;
    this.deviceInput.value = DEVICES.includes(link.device) ? link.device : DEVICES[0];
    this.keptChanges.set(name, this.changes());
  }

  /** Puts values into the fields, by their names, and the defaults where there is none. */
  setValues(values) {
    for (const { id } of FIELDS) {
      const value = this.defaultValue(id);
      this.inputs[id].input.value = /^-?\d*\.?\d+(e[+-]?\d+)?$/i.test(values[id]) && Number.isFinite(Number(values[id])) ? values[id] : value;
      this.checkField(id);
    }
  }

  /** Puts back the defaults of the game, once one is picked. */
  restoreDefaults() {
    if (!this.game) return;
    this.keptChanges.delete(this.game);
    this.setValues({});
    this.deviceInput.value = DEVICES[0];
  }

  /** The value of a field in the defaults. */
  defaultValue(id) {
    if (id === "seeds") return 1;
    const hidden = settingAt(this.defaults, "policy.hidden");
    if (id === "width") return hidden[0];
    if (id === "layers") return hidden.length;
    return settingAt(this.defaults, FIELDS.find((field) => field.id === id).paths[0]);
  }

  /** The kind of the game's network; undefined before a game is picked. */
  get networkKind() {
    return settingAt(this.defaults, "policy.kind");
  }

  value(id) {
    return this.inputs[id].input.valueAsNumber;
  }

  /** Settings that differ from the defaults, for the link. */
  changes() {
    const texts = FIELDS.map(({ id }) => [id, this.inputs[id].input.value]);
    const entries = texts.filter(([id, text]) => text !== `${this.defaultValue(id)}`);
    if (this.deviceInput.value !== DEVICES[0]) entries.push(["device", this.deviceInput.value]);
    return Object.fromEntries(entries);
  }

  /** Shows beside a field the reason why its value is invalid, if it is; returns whether it is valid. */
  checkField(id, text = this.inputs[id].input.validationMessage) {
    const { input, note } = this.inputs[id];
    note.textContent = text;
    note.hidden = text === "";
    input.setAttribute("aria-invalid", `${text !== ""}`);
    return text === "";
  }

  /** The settings of every run, as `{ seed, text }` with TOML, of the game with these rules (its parameters by name);
      or undefined, with the reasons beside the fields. */
  read(rules) {
    const invalidFields = FIELDS.filter(({ id }) => !this.checkField(id));
    const steps = this.value("groups") * this.value("size") * this.value("steps");
    if (invalidFields.length === 0 && steps > this.maxSteps) {
      this.checkField("groups", `That makes ${steps.toLocaleString("en")} steps an iteration; this page takes at most ${this.maxSteps.toLocaleString("en")}.`);
      invalidFields.push({ id: "groups" });
    }
    if (invalidFields.length > 0) {
      this.inputs[invalidFields[0].id].input.focus();
      return undefined;
    }
    return Array.from({ length: this.value("seeds") }, (_, i) => {
      const seed = this.value("first") + i;
      return { seed, iterations: this.value("iterations"), text: writeToml({ env: this.game, ...this.changedSettings(), seed, ...this.changedRules(rules) }) };
    });
  }

  /** The settings that differ from the defaults, and those that must follow them. */
  changedSettings() {
    const table = {};
    for (const { id, paths } of FIELDS) {
      if (this.value(id) === this.defaultValue(id)) continue;
      for (const path of paths) table[path] = this.value(id);
    }
    if ("policy.hidden" in table) table["policy.hidden"] = Array(this.value("layers")).fill(this.value("width"));
    if ("rollout.num_steps" in table) {
      const share = settingAt(this.defaults, "rollout.learn_steps") / settingAt(this.defaults, "rollout.num_steps");
      table["rollout.learn_steps"] = Math.max(1, Math.round(share * this.value("steps")));
    }
    // Minibatches divide the games among them.
    const games = this.value("groups") * this.value("size");
    const defaultParts = settingAt(this.defaults, "update.num_minibatches");
    let parts = Math.min(defaultParts, games);
    while (games % parts > 0) parts -= 1;
    if (parts !== defaultParts) table["update.num_minibatches"] = parts;
    return table;
  }

  /** The parameters of the game that differ from the defaults, by their paths. */
  changedRules(rules) {
    const defaults = this.defaults[this.game] ?? {};
    // JSON has more digits of a number in single precision than the defaults have.
    const isDefault = ([key, value]) => value === defaults[key] || Math.fround(value) === Math.fround(defaults[key]);
    return Object.fromEntries(Object.entries(rules).filter((entry) => !isDefault(entry)).map(([key, value]) => [`${this.game}.${key}`, value]));
  }

  /** Shows an error beside the fields whose settings it names. */
  showError(message) {
    for (const { id, paths } of FIELDS) if (paths.some((path) => message.includes(path))) this.checkField(id, message);
  }
}
