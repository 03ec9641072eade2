// What a training can go on from: sections of bytes in the module, plain data for the browser's storage.

/** As plain data. */
export function plain(all) {
  const sections = all.names().map((name, i) => ({ name, version: all.version(i), bytes: all.bytes(i) }));
  const saved = { iteration: all.iteration(), sections };
  all.free();
  return saved;
}

/** The same for the module, whose class `Saved` is. */
export function restored(Saved, { iteration, sections }) {
  const all = new Saved(iteration);
  for (const { name, version, bytes } of sections) all.put(name, version, bytes);
  return all;
}
