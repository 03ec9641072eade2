// The part of TOML that Grove writes its settings in: sections, and keys with JSON-like values.

/** Characters that JSON escapes and a text in triple quotes does not. */
const JSON_ESCAPES = { '"': '\\"', "\n": "\\n" };

/** The settings as an object; a section is an object in it. */
export function readToml(text) {
  const settings = {};
  let table = settings;
  for (const line of joinLines(text).split("\n")) {
    const section = /^\s*\[([\w.]+)\]/.exec(line);
    const entry = /^\s*(\w+)\s*=\s*(.*?)\s*$/.exec(line);
    if (section) table = settings[section[1]] = {};
    else if (entry) table[entry[1]] = parseValue(entry[2]);
  }
  return settings;
}

/** Puts texts and lists that may be on several lines on one; texts in triple quotes get single ones. */
function joinLines(text) {
  const basic = (content) => `"${content.replace(/\\[^]|["\n]/g, (part) => JSON_ESCAPES[part] ?? part)}"`;
  return text
    .replace(/"""\n?([^]*?)"""(?!")/g, (_, content) => basic(content))
    .replace(/'''\n?([^]*?)'''(?!')/g, (_, content) => JSON.stringify(content))
    .replace(/\[[^[\]=]*\]/g, (list) => list.replace(/\s+/g, " "));
}

/** A value; JSON has all but texts in single quotes, and the floats that are not finite. */
function parseValue(text) {
  const [, sign, name] = /^([+-]?)(inf|nan)$/.exec(text) ?? [];
  if (name) return name === "nan" ? NaN : sign === "-" ? -Infinity : Infinity;
  if (/^'.*'$/.test(text)) return text.slice(1, -1);
  return JSON.parse(text.replace(/,\s*\]$/, "]"));
}

/** Settings, by their paths such as `rollout.num_groups`, as a file. */
export function writeToml(settings) {
  const sections = new Map([["", []]]);
  for (const [path, value] of Object.entries(settings)) {
    const [section, key] = path.includes(".") ? path.split(".") : ["", path];
    if (!sections.has(section)) sections.set(section, []);
    sections.get(section).push(`${key} = ${JSON.stringify(value)}`);
  }
  return [...sections].map(([name, lines]) => [...(name ? [`[${name}]`] : []), ...lines].join("\n")).join("\n") + "\n";
}

/** The value at a path such as `rollout.num_groups`. */
export const settingAt = (settings, path) => path.split(".").reduce((table, key) => table?.[key], settings);
