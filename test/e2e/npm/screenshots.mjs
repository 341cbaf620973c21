// Takes pictures for the documentation: node screenshots.mjs '{"kind","url","out",…}', from docs/screenshots.sh.
import { chromium } from 'playwright-core';

const o = JSON.parse(process.argv[2]);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  chromiumSandbox: false,
  args: ['--disable-gpu', '--no-first-run', '--disable-dev-shm-usage', '--hide-scrollbars'],
});

async function open(url, { width = 1280, height = 800, scheme = 'dark', scale = 1 } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, deviceScaleFactor: scale, reducedMotion: 'reduce' });
  const page = await context.newPage();
  await page.goto(url);
  return page;
}

const kinds = {
  async page() {
    const page = await open(o.url, o);
    await page.waitForTimeout(2000);
    await page.screenshot({ path: o.out });
  },
  async dashboard() {
    const wide = { width: 1280, height: 800, scale: 1.25 };
    const [dark, light, phone] = await Promise.all([wide, { ...wide, scheme: 'light' }, { width: 390, height: 844, scale: 1.5 }].map((size) => open(o.url, size)));
    await dark.waitForTimeout(130_000); // a page shows the two minutes since it was opened
    await dark.screenshot({ path: `${o.out}/dashboard-dark.png` });
    await phone.screenshot({ path: `${o.out}/dashboard-phone.png` });
    const shoot = async (selector, name) => {
      await light.evaluate((s) => document.querySelector(s).scrollIntoView(), selector);
      await light.waitForTimeout(1000);
      await light.screenshot({ path: `${o.out}/${name}.png` });
    };
    await shoot('#consumers', 'dashboard-light');
    await light.fill('#recent-channel', 'shipments');
    await light.click('#recent-form button');
    await light.fill('#trace-form [name=channel]', 'market:depth');
    await light.click('#trace-form button');
    await light.fill('#sub-form [name=channels]', 'orders.eu orders.us');
    await light.click('#sub-button');
    await light.waitForTimeout(8000);
    await shoot('#channels', 'dashboard-tools');
  },
  // Every kind of page of the site, wide and on a phone.
  async site() {
    const pages = ['index', 'howto/problems', 'howto/push-to-a-page', 'reference/config', 'reference/cli', 'tutorial/capacity', 'lab/index', 'lab/a', 'runbooks/index', 'runbooks/WeirLatency', 'compare/index', 'zh/quickstart', 'project/ARCHITECTURE', 'project/README.zh'];
    for (const [name, size] of Object.entries({ wide: { width: 1440, height: 900, scheme: 'light' }, dark: { width: 1100, height: 800 }, phone: { width: 390, height: 844, scheme: 'light' } })) {
      const page = await open(`${o.url}/index.html`, size);
      for (const p of pages) {
        await page.goto(`${o.url}/${p}.html`);
        await page.screenshot({ path: `${o.out}/${name}-${p.replaceAll('/', '-')}.png` });
      }
      await page.fill('#site-query', 'reconnect');
      await page.waitForSelector('#site-results a');
      await page.screenshot({ path: `${o.out}/${name}-search.png` });
      if (name === 'phone') {
        await page.fill('#site-query', '');
        await page.click('#site-menu');
        await page.screenshot({ path: `${o.out}/phone-menu.png` });
      }
    }
  },
};
await kinds[o.kind]();
await browser.close();
