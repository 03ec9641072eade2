import { chromium } from 'playwright-core';
import { serve } from './server.mjs';
const site = await serve('../dist');
const b = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] });
for (const game of process.argv.slice(2)) {
  const p = await b.newPage({ viewport: { width: 1280, height: 900 } });
  await p.goto(site.address + `#game=${game}`);
  await p.waitForFunction(() => performance.getEntriesByName('ready').length > 0);
  const t = performance.now();
  await p.click('#start');
  let seen = '', s, reached;
  for (let i = 0; i < 600; i++) {
    s = await p.locator('#state').textContent();
    const g = Number(/greedy ([−\d.]+)/.exec(s)?.[1].replace('−', '-') ?? NaN);
    if (g >= 7.5 && !reached) reached = (performance.now() - t) / 1000;
    if (/^(Finished|Stopped|Not)/.test(s)) break;
    await p.waitForTimeout(100);
  }
  console.log(game, `${((performance.now() - t) / 1000).toFixed(1)} s`, s, 'greedy 7.5 after', reached?.toFixed(1), await p.locator('#tell-training').textContent());
  await p.close();
}
await b.close(); site.close();
