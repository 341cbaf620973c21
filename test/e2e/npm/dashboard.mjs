// Drives the dashboard in Chromium: node dashboard.mjs '{"executable","profile"}'. Every line of its
// standard input is {"do","arg"}, every line of its output the answer, {"result"} or {"error"}.
import { createInterface } from 'node:readline';
import { chromium } from 'playwright-core';

const { executable, profile } = JSON.parse(process.argv[2]);
const browser = await chromium.launch({
  executablePath: executable,
  headless: true,
  chromiumSandbox: false,
  args: ['--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run', '--disable-dev-shm-usage', `--crash-dumps-dir=${profile}`],
});

let context, page;
let troubles = []; // what a page of ours never does
let requests = [];
const patience = 30_000;

async function open({ url, width = 1280, height = 900, scheme = 'dark', live = true }) {
  await context?.close();
  context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, acceptDownloads: true, reducedMotion: 'reduce' });
  page = await context.newPage();
  troubles = [];
  requests = [];
  // The readback is this script's own.
  page.on('console', (m) => { if (['error', 'warning'].includes(m.type()) && !m.text().includes('willReadFrequently')) troubles.push(`${m.type()}: ${m.text()}`); });
  page.on('pageerror', (e) => troubles.push(`uncaught: ${e.message}`));
  page.on('dialog', (d) => { troubles.push(`dialog: ${d.message()}`); d.dismiss(); });
  page.on('request', (r) => requests.push(r.url()));
  await page.addInitScript(() => {
    window.violations = [];
    document.addEventListener('securitypolicyviolation', (e) => window.violations.push(`${e.violatedDirective} ${e.blockedURI}`));
  });
  page.setDefaultTimeout(patience);
  await page.goto(url);
  if (live) await page.waitForSelector('html[data-live="yes"]');
  return { title: await page.title(), url: page.url() };
}

const number = (s) => Number(s.replaceAll(',', '').replace(/k$/, 'e3').replace(/M$/, 'e6'));

const does = {
  open,
  // What must be empty whenever it is asked for.
  async troubles() { return [...troubles, ...(await page.evaluate(() => window.violations))]; },
  async requests() { return requests; },
  // Another page of the same site.
  async goto(url) { await page.goto(url); },
  async text(selector) { return page.textContent(selector); },
  async visible(selector) { return page.isVisible(selector); },
  async wait(selector) { await page.waitForSelector(selector); },
  async gone(selector) { await page.waitForSelector(selector, { state: 'hidden' }); },
  async click(selector) { await page.click(selector); },
  async fill({ selector, text }) { await page.fill(selector, text); },
  async press(key) { await page.keyboard.press(key); },
  async has({ selector, text }) {
    await page.waitForFunction(([s, t]) => document.querySelector(s)?.textContent.includes(t), [selector, text]);
  },
  // A number of the snapshot that is at least so much, and then another one.
  async moves({ selector, least }) {
    const of = () => page.textContent(selector);
    await page.waitForFunction(([s, l]) => {
      const v = document.querySelector(s).textContent.replaceAll(',', '').replace(/k$/, 'e3').replace(/M$/, 'e6');
      return Number(v) >= l;
    }, [selector, least]);
    const was = await of();
    await page.waitForFunction(([s, w]) => document.querySelector(s).textContent !== w, [selector, was]);
    return number(await of());
  },
  async frames(more) {
    const at = await page.evaluate(() => Number(document.documentElement.dataset.frames ?? 0));
    await page.waitForFunction((n) => Number(document.documentElement.dataset.frames ?? 0) >= n, at + more);
  },
  async evaluate(code) { return page.evaluate(code); },
  // What a canvas shows: how many colours, so that an empty one is found out.
  async colours(selector) {
    await page.locator(selector).scrollIntoViewIfNeeded();
    await page.waitForFunction((s) => document.querySelector(s).width > 50, selector);
    return page.evaluate((s) => {
      const c = document.querySelector(s), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, seen = new Set();
      for (let i = 0; i < d.length; i += 4) if (d[i + 3]) seen.add((d[i] << 16) | (d[i + 1] << 8) | d[i + 2]);
      return seen.size;
    }, selector);
  },
  async download({ selector, to }) {
    const [download] = await Promise.all([page.waitForEvent('download'), page.click(selector)]);
    await download.saveAs(to);
    return download.suggestedFilename();
  },
  // Every control that can be seen, and those that the tab key reached with a ring to be seen.
  async keyboard() {
    await page.evaluate(() => {
      const seen = (e) => e.checkVisibility({ visibilityProperty: true }) && !e.disabled && !e.closest('dialog');
      window.controls = [...document.querySelectorAll('a[href], button, input, select, textarea, [tabindex="0"]')].filter(seen);
      window.reached = new Set();
      window.bare = [];
      document.addEventListener('focusin', (e) => {
        window.reached.add(e.target);
        if (getComputedStyle(e.target).outlineStyle === 'none') window.bare.push(e.target.outerHTML.slice(0, 120));
      });
      document.activeElement?.blur();
      window.scrollTo(0, 0);
    });
    const n = await page.evaluate(() => window.controls.length);
    for (let i = 0; i < n + 20; i++) await page.keyboard.press('Tab');
    return page.evaluate(() => ({
      controls: window.controls.length,
      missed: window.controls.filter((e) => e.isConnected && !window.reached.has(e)).map((e) => e.outerHTML.slice(0, 160)),
      bare: window.bare,
      nameless: window.controls.filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML.slice(0, 160)),
    }));
  },
  async screenshot(path) { await page.screenshot({ path }); },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { do: what, arg } = JSON.parse(line);
  let answer;
  try {
    answer = { result: (await does[what](arg)) ?? null };
  } catch (e) {
    answer = { error: `${what} ${JSON.stringify(arg ?? '')}: ${e.message}` };
  }
  process.stdout.write(JSON.stringify(answer) + '\n');
}
await browser.close();
