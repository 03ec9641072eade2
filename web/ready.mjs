// Writes ready.js into a built page: the names of the games that a trained agent comes with, in the order
// in which the module has the games, whether the modules with relaxed SIMD are there, and the address of the project,
// from GROVE_SOURCE. GROVE_PAGE, the address that the page is published at, makes the address of its preview absolute.

import { existsSync } from 'node:fs';
import { readFile, rm, writeFile } from 'node:fs/promises';
import { resolve } from 'node:path';

const page = resolve(process.argv[2]);
await writeFile(`${page}/package.json`, '{ "type": "module" }');
const { default: init, games } = await import(`${page}/watch.js`);
await init({ module_or_path: await readFile(`${page}/watch_bg.wasm`) });
const ready = JSON.parse(games()).map(({ name }) => name).filter((name) => existsSync(`${page}/policies/${name}.safetensors`));
await writeFile(`${page}/ready.js`, `// Games that a trained agent comes with, whether there are modules with relaxed SIMD, and the address of the project.

export default ${JSON.stringify(ready)};
export const relaxed = ${existsSync(`${page}/train-relaxed.js`)};
export const source = ${JSON.stringify(process.env.GROVE_SOURCE || null)};
`);
if (process.env.GROVE_PAGE) {
  const html = await readFile(`${page}/index.html`, 'utf8');
  await writeFile(`${page}/index.html`, html.replace('content="preview.png"', `content="${new URL('preview.png', process.env.GROVE_PAGE)}"`));
}
await rm(`${page}/package.json`);
