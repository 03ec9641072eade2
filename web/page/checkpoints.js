// Checkpoints: `Saved` in a module, plain data in the browser's storage.

/** Converts a checkpoint to plain data, and frees it. */
export function toPlainData(checkpoint) {
  const sections = checkpoint.names().map((name, i) => ({ name, version: checkpoint.version(i), bytes: checkpoint.bytes(i) }));
  const saved = { iteration: checkpoint.iteration(), sections };
  checkpoint.free();
  return saved;
}

/** Converts plain data to a checkpoint of the module with this class. */
export function fromPlainData(Saved, { iteration, sections }) {
  const checkpoint = new Saved(iteration);
  for (const { name, version, bytes } of sections) checkpoint.put(name, version, bytes);
  return checkpoint;
}
