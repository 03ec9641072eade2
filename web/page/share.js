// Sharing: links, an agent in a link (its policy file, compressed, as base64url), and links to the project.

import { $, announce, say } from "./dom.js";

/** The longest text of an agent in a link; what is larger is saved as a file. */
const MAX_CHARS = 100_000;

const through = async (bytes, stream) => new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());

/** A policy file as text for a link; throws if that is too long. */
export async function pack(file) {
  const bytes = await through(file, new CompressionStream("deflate-raw"));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  const packed = btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
  if (packed.length > MAX_CHARS) throw new Error("This agent is too large for a link. Save it as a file.");
  return packed;
}

/** The policy file in the text of a link; throws if there is none. */
export async function unpack(packed) {
  if (packed.length > MAX_CHARS) throw new Error("The agent in the link is too large.");
  try {
    const bytes = Uint8Array.from(atob(packed.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
    return await through(bytes, new DecompressionStream("deflate-raw"));
  } catch {
    throw new Error("The link is damaged or incomplete.");
  }
}

/** Copies a link; it is in the address bar, too. */
export async function copy(link, done) {
  try {
    await navigator.clipboard.writeText(link);
    announce(done);
  } catch {
    say("This browser does not let the page copy: copy the link from the address bar.");
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
