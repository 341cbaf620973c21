// Opens a page in Chromium and prints a line of JSON for each event it reports:
// node browser.mjs '{"executable","page","profile","accept"}'. accept is
// what it sends as Accept-Encoding, empty for its own. It ends when its standard input does.
import { chromium } from 'playwright-core';

const { executable, page: address, profile, accept } = JSON.parse(process.argv[2]);
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');
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

// How the newest event stream is encoded: an EventSource does not tell.
let coding = '';
const devtools = await context.newCDPSession(page);
devtools.on('Network.responseReceived', ({ type, response }) => {
  if (type !== 'EventSource') return;
  const [, value] = Object.entries(response.headers).find(([name]) => name.toLowerCase() === 'content-encoding') ?? [];
  coding = value ?? '';
});
await devtools.send('Network.enable');
if (accept) await devtools.send('Network.setExtraHTTPHeaders', { headers: { 'Accept-Encoding': accept } });

await page.exposeFunction('report', (line) => {
  const event = JSON.parse(line);
  say(event.source === 'sse' ? { ...event, coding } : event);
});
page.on('pageerror', (e) => say({ source: 'sse', kind: 'fatal', data: String(e) }));
process.stdin.on('end', async () => {
  await context.close();
  process.exit(0);
}).resume();
await page.goto(address);
