// Does with undici what every client of test/e2e/http2_test.go does and prints one line of
// JSON: node undici.mjs '{"url","ca","key","size","alphabet"}'
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { connect as tlsConnect } from 'node:tls';
import { Agent, fetch } from 'undici';

const { url, ca, key, size, alphabet } = JSON.parse(process.argv[2]);
const sum = (bytes) => createHash('sha256').update(bytes).digest('hex');
const pattern = Buffer.from(alphabet.repeat(size / alphabet.length));
const versions = new Set();
const dispatcher = new Agent({
  allowH2: true,
  // As undici connects by itself, but what ALPN agrees on is written down.
  connect({ hostname, port }, callback) {
    const socket = tlsConnect({ host: hostname, port, ca: readFileSync(ca), ALPNProtocols: ['h2', 'http/1.1'] });
    socket.once('secureConnect', () => { versions.add(socket.alpnProtocol === 'h2' ? '2' : socket.alpnProtocol); callback(null, socket); });
    socket.once('error', (e) => callback(e));
  },
});
const ask = (path, options) => fetch(url + path, { dispatcher, ...options });

const report = {};
const left = new AbortController();
const followed = await ask('/sse?channel=undici', { headers: { accept: 'text/event-stream' }, signal: left.signal });
const reader = followed.body.pipeThrough(new TextDecoderStream()).getReader();
let text = '';
const until = async (ok) => {
  while (!ok()) text += (await reader.read()).value;
};
const data = () => [...text.matchAll(/^data: (.*)$/gm)].map((m) => m[1]);
await until(() => text.includes('id: '));
for (let i = 0; i < 3; i++) {
  const published = await ask('/api/publish', { method: 'POST', headers: { 'x-api-key': key, 'content-type': 'application/json' }, body: JSON.stringify({ channel: 'undici', data: { n: i } }) });
  await published.text();
}
await until(() => data().length >= 3 && text.endsWith('\n\n'));
report.events = data();
left.abort();
const uploaded = await (await ask('/backend/upload', { method: 'POST', body: pattern })).json();
report.uploaded = `${uploaded.bytes} ${uploaded.sum}`;
const downloaded = Buffer.from(await (await ask(`/backend/download?n=${size}`)).arrayBuffer());
report.downloaded = `${downloaded.length} ${sum(downloaded)}`;
const head = await ask('/backend/download?n=100', { method: 'HEAD' });
report.head = `${head.status} ${head.headers.get('content-length')}`;
report.echoes = await Promise.all(Array.from({ length: 50 }, async (_, i) => (await ask(`/backend/echo?n=${i}`)).text()));
const refused = await ask('/nowhere');
await refused.text();
report.refused = String(refused.status);
try {
  const limited = await ask('/limited', { method: 'POST', body: pattern.subarray(0, 200000) });
  await limited.text();
  report.limited = String(limited.status);
} catch (e) {
  report.limited = String(e.cause ?? e);
}
report.afterwards = String((await ask('/backend/echo?n=1')).status);
report.version = [...versions].join(' ');
process.stdout.write(JSON.stringify(report) + '\n');
process.exit(0);
