// Publishes orders and prices for the pictures of the dashboard, and follows them: node test/e2e/npm/traffic.mjs URL KEY
const [url, key] = process.argv.slice(2);

async function follow(channel) {
  const res = await fetch(`${url}/sse?channel=${encodeURIComponent(channel)}`);
  for await (const chunk of res.body) void chunk;
}

async function publish(channel, every, data) {
  for (let n = 1; ; n++) {
    await fetch(`${url}/api/publish`, {
      method: 'POST',
      headers: { 'X-API-Key': key, 'Content-Type': 'application/json' },
      body: JSON.stringify({ channel, key: `k${n % 3}`, data: data(n) }),
    });
    await new Promise((resolve) => { setTimeout(resolve, every * (0.5 + Math.random())); });
  }
}

const order = (n) => ({ order: n, side: n % 3 ? 'buy' : 'sell', price: Number((1 + Math.random()).toFixed(4)) });
const channels = { 'prices.EURUSD': 44, 'prices.GBPUSD': 78, 'orders.eu': 92, 'orders.us': 127, 'market:depth': 250, 'chat.lobby': 340, shipments: 500, alerts: 1000 };
const gone = () => process.exit(0); // the server has ended
for (const [channel, every] of Object.entries(channels)) {
  for (let i = 0; i < 4; i++) follow(channel).catch(gone);
  publish(channel, every, order).catch(gone);
}
