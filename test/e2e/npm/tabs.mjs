// Drives the tabs of one Chromium: node tabs.mjs '{"executable","profile","flags"}'. Every line of its standard input
// is {"do","arg"}, every line of its output the answer, {"result"} or {"error"}.
import { createInterface } from 'node:readline';
import { chromium } from 'playwright-core';

const { executable, profile, flags } = JSON.parse(process.argv[2]);
const context = await chromium.launchPersistentContext(profile, {
  executablePath: executable,
  headless: true,
  chromiumSandbox: false,
  args: ['--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run', '--disable-dev-shm-usage', ...flags],
});
const tabs = new Map();
const does = {
  // init runs in the page before its own scripts.
  async open({ name, url, init }) {
    const page = await context.newPage();
    page.setDefaultTimeout(60_000);
    page.on('pageerror', (e) => process.stderr.write(`${name}: ${e}\n`));
    page.on('console', (m) => process.stderr.write(`${name}: ${m.type()}: ${m.text()}\n`));
    if (init) await page.addInitScript(init);
    await page.goto(url);
    tabs.set(name, page);
  },
  async evaluate({ name, code }) { return tabs.get(name).evaluate(code); },
  async wait({ name, code }) { await tabs.get(name).waitForFunction(code, undefined, { polling: 50 }); },
  async click({ name, selector }) { await tabs.get(name).click(selector); },
  async close({ name }) { await tabs.get(name).close(); },
};
for await (const line of createInterface({ input: process.stdin })) {
  const { do: what, arg } = JSON.parse(line);
  let answer;
  try {
    answer = { result: (await does[what](arg)) ?? null };
  } catch (e) {
    answer = { error: `${what} ${JSON.stringify(arg)}: ${e}` };
  }
  process.stdout.write(JSON.stringify(answer) + '\n');
}
await context.close();
process.exit(0);
