// Writes ready.js into a built page: the names of the games that a trained agent comes with, in the order
// in which the module has the games, and whether the modules with relaxed SIMD are there.

import { existsSync } from 'node:fs';
import { readFile, rm, writeFile } from 'node:fs/promises';
import { resolve } from 'node:path';

const page = resolve(process.argv[2]);
await writeFile(`${page}/package.json`, '{ "type": "module" }');
const { default: init, games } = await import(`${page}/watch.js`);
await init({ module_or_path: await readFile(`${page}/watch_bg.wasm`) });
const ready = JSON.parse(games()).map(({ name }) => name).filter((name) => existsSync(`${page}/policies/${name}.safetensors`));
await writeFile(`${page}/ready.js`, `// Games that a trained agent comes with, and whether there are modules with relaxed SIMD.

export default ${JSON.stringify(ready)};
export const relaxed = ${existsSync(`${page}/train-relaxed.js`)};
`);
await rm(`${page}/package.json`);
