// Opens a page in Chromium and prints a line of JSON for each event it reports:
// node browser.mjs '{"executable","page","profile"}'. It ends when its standard
// input does.
import { chromium } from 'playwright-core';

const { executable, page: address, profile } = JSON.parse(process.argv[2]);
const context = await chromium.launchPersistentContext(profile, {
  executablePath: executable,
  headless: true,
  chromiumSandbox: false,
  args: [
    '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run',
    '--disable-dev-shm-usage',
  ],
});
const page = context.pages()[0] ?? (await context.newPage());
await page.exposeFunction('report', (line) => process.stdout.write(line + '\n'));
page.on('pageerror', (e) => process.stdout.write(JSON.stringify({ source: 'sse', kind: 'fatal', data: String(e) }) + '\n'));
process.stdin.on('end', async () => {
  await context.close();
  process.exit(0);
}).resume();
await page.goto(address);
