// An agent in a link: its policy file, compressed, as base64url.

/** The longest text of an agent in a link; what is larger is saved as a file. */
const MOST = 100_000;

const through = async (bytes, stream) => new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());

/** A policy file as text for a link; throws if that is too long. */
export async function pack(file) {
  const bytes = await through(file, new CompressionStream("deflate-raw"));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  const packed = btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
  if (packed.length > MOST) throw new Error("This agent is too large for a link. Save it as a file.");
  return packed;
}

/** The policy file in the text of a link; throws if there is none. */
export async function unpack(packed) {
  if (packed.length > MOST) throw new Error("The agent in the link is too large.");
  const bytes = Uint8Array.from(atob(packed.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
  return through(bytes, new DecompressionStream("deflate-raw"));
}
