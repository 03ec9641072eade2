// A static host as plain as they come: the files of a folder below a path of its own, with the headers
// of the program's server. A check may put other texts in the place of files.

import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { join, normalize } from 'node:path';

/** The path of the page on the host: not its root. */
const PAGE_PATH = '/some/where/';

const TYPES = {
  html: 'text/html; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  css: 'text/css; charset=utf-8',
  json: 'application/json',
  wasm: 'application/wasm',
  png: 'image/png',
};

/** The same as in src/program/watch/site.rs, with the policy of the page. */
const headers = (policy) => ({
  'Content-Security-Policy': `${policy}; frame-ancestors 'none'`,
  'X-Content-Type-Options': 'nosniff',
  'Referrer-Policy': 'no-referrer',
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Embedder-Policy': 'require-corp',
  'Cross-Origin-Resource-Policy': 'same-origin',
  'Cache-Control': 'no-cache',
});

/** Serves a folder. `missing` are the requests that found nothing, `instead` texts for files; a `plain` host cannot
    send headers of its own, and redirects `index.html` to the folder. */
export async function serve(folder, plain = false) {
  const site = { folder, missing: [], instead: {} };
  const [, policy] = /"Content-Security-Policy" content="([^"]*)"/.exec(await readFile(join(folder, 'index.html'), 'utf8'));
  const sent = plain ? {} : headers(policy);
  const server = createServer(async (request, response) => {
    const { pathname, search } = new URL(request.url, 'http://host/');
    const path = pathname.startsWith(PAGE_PATH) ? pathname.slice(PAGE_PATH.length) || 'index.html' : undefined;
    try {
      if (plain && pathname.endsWith('/index.html')) return response.writeHead(308, { Location: './' }).end();
      if (path === undefined || normalize(path).startsWith('..')) throw new Error('not below');
      const other = search ? undefined : site.instead[path];
      const body = other ?? (await readFile(join(folder, path)));
      const type = TYPES[path.split('.').at(-1)] ?? 'application/octet-stream';
      response.writeHead(200, { ...sent, 'Content-Type': type }).end(body);
    } catch {
      site.missing.push(pathname);
      response.writeHead(404).end();
    }
  });
  await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
  site.address = `http://127.0.0.1:${server.address().port}${PAGE_PATH}`;
  site.close = () => server.close();
  return site;
}
