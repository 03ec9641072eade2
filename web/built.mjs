// Reads what cargo says of a build, and prints the path of the module that the crate in a folder became.

import { createInterface } from 'node:readline';

const manifest = `${process.argv[2]}/Cargo.toml`;
let found;
for await (const line of createInterface({ input: process.stdin })) {
  const { reason, manifest_path: path, target, filenames } = JSON.parse(line);
  if (reason !== 'compiler-artifact' || path !== manifest || !target.crate_types.includes('cdylib')) continue;
  found = filenames.find((name) => name.endsWith('.wasm'));
}
if (!found) {
  console.error(`${manifest} gives no module: it must be a library with crate-type = ["cdylib"]`);
  process.exit(1);
}
console.log(found);
