// Sharing: links, an agent in a link (its policy file, compressed, as base64url), and links to the project.

import { $, announce, showNotice } from "./dom.js";

/** The longest text of an agent in a link; what is larger is saved as a file. */
const MAX_CHARS = 100_000;

/** The most bytes that a link unpacks to: weights hardly compress, so what is much longer than its text is no agent. */
const MAX_BYTES = 4 * MAX_CHARS;
const TOO_LARGE = "The agent in the link is too large.";

/** The bytes that come out of a stream; undefined if they are more than `maxBytes`. */
async function readThrough(bytes, stream, maxBytes = Infinity) {
  const reader = new Blob([bytes]).stream().pipeThrough(stream).getReader();
  const parts = [];
  for (let size = 0; ;) {
    const { done, value } = await reader.read();
    if (done) return new Uint8Array(await new Blob(parts).arrayBuffer());
    parts.push(value);
    size += value.length;
    if (size > maxBytes) return void reader.cancel();
  }
}

/** A policy file as text for a link; throws if that is too long. */
export async function pack(file) {
  if (!globalThis.CompressionStream) throw new Error("This browser cannot put an agent into a link. Save it as a file.");
  const bytes = await readThrough(file, new CompressionStream("deflate-raw"));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  const packed = btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
  if (packed.length > MAX_CHARS) throw new Error("This agent is too large for a link. Save it as a file.");
  return packed;
}

/** The policy file in the text of a link; throws if there is none. */
export async function unpack(packed) {
  if (packed.length > MAX_CHARS) throw new Error(TOO_LARGE);
  if (!globalThis.DecompressionStream) throw new Error("This browser is too old for it.");
  let file;
  try {
    const bytes = Uint8Array.from(atob(packed.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
    file = await readThrough(bytes, new DecompressionStream("deflate-raw"), MAX_BYTES);
  } catch {
    throw new Error("The link is damaged or incomplete.");
  }
  if (!file) throw new Error(TOO_LARGE);
  return file;
}

/** Messages after a link has been copied. */
const COPIED_WITH_AGENT = "Link copied: anyone who opens it meets this agent.";
const COPIED_WITHOUT_AGENT = "Link copied: it holds the game and the settings, not the agent. Share agent copies one with the agent.";

/** Copies a link, with an agent in it or without; it is in the address bar, too. */
export async function copyLink(link, hasAgent) {
  try {
    await navigator.clipboard.writeText(link);
    announce(hasAgent ? COPIED_WITH_AGENT : COPIED_WITHOUT_AGENT);
  } catch {
    showNotice("This browser does not let the page copy: copy the link from the address bar.");
  }
}

/** Links to the project: its address is known when the page is built, or from the name of a GitHub Pages host. */
export function linkProject(source) {
  const [, owner] = /^([\w-]+)\.github\.io$/.exec(location.hostname) ?? [];
  const project = source ?? (owner && `https://github.com/${owner}/${location.pathname.split("/")[1]}`);
  if (!project) return;
  $("links").hidden = false;
  $("link-source").href = project;
  $("link-docs").href = `${project}/tree/HEAD/docs`;
  $("link-install").href = `${project}#quick-start`;
}
