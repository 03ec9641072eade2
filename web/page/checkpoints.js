// Checkpoints: `Saved` in a module, plain data in the browser's storage.

/** Converts a checkpoint to plain data, and frees it. */
export function toPlainData(all) {
  const sections = all.names().map((name, i) => ({ name, version: all.version(i), bytes: all.bytes(i) }));
  const saved = { iteration: all.iteration(), sections };
  all.free();
  return saved;
}

/** Converts plain data to a checkpoint of the module with this class. */
export function fromPlainData(Saved, { iteration, sections }) {
  const all = new Saved(iteration);
  for (const { name, version, bytes } of sections) all.put(name, version, bytes);
  return all;
}
