// Does with Node's own HTTP/2 what every client of test/e2e/http2_test.go does, on one
// connection, and prints one line of JSON: node http2.mjs '{"url","ca","key","size","alphabet"}'
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import http2 from 'node:http2';

const { url, ca, key, size, alphabet } = JSON.parse(process.argv[2]);
const session = http2.connect(url, ca ? { ca: readFileSync(ca) } : {});
session.on('error', (e) => { throw e; });
const pattern = Buffer.from(alphabet.repeat(size / alphabet.length));
const sum = (bytes) => createHash('sha256').update(bytes).digest('hex');

// ask sends a request and gives its answer when it is whole.
function ask(headers, body) {
  return new Promise((resolve, reject) => {
    const stream = session.request(headers, { endStream: body === undefined });
    const answer = { pieces: [] };
    stream.on('response', (h) => { answer.headers = h; });
    stream.on('trailers', (h) => { answer.trailers = h; });
    stream.on('data', (piece) => answer.pieces.push(piece));
    // A server may answer and then refuse the rest of a body (RFC 9113 §8.1).
    stream.on('error', (e) => (answer.headers ? resolve(answer) : reject(e)));
    stream.on('close', () => { answer.body = Buffer.concat(answer.pieces); resolve(answer); });
    if (body !== undefined) stream.end(body);
  });
}

// follow opens a stream and gives its events, and a promise of its beginning.
function follow(channel) {
  const stream = session.request({ ':path': `/sse?channel=${channel}`, accept: 'text/event-stream' });
  const events = [];
  let text = '';
  let wake = () => {};
  stream.setEncoding('utf8');
  stream.on('data', (piece) => {
    const blocks = (text + piece).split('\n\n');
    text = blocks.pop();
    for (const block of blocks) events.push(Object.fromEntries(block.split('\n').map((l) => [l.slice(0, l.indexOf(':')), l.slice(l.indexOf(':') + 2)])));
    wake();
  });
  return async (ok) => {
    while (!ok(events)) await new Promise((resolve) => { wake = resolve; });
    return { events, stream };
  };
}

const report = {};
report.version = '2'; // this module speaks nothing else
const until = follow('node');
await until((events) => events.length > 0);
for (let i = 0; i < 3; i++) {
  await ask({ ':method': 'POST', ':path': '/api/publish', 'x-api-key': key, 'content-type': 'application/json' }, JSON.stringify({ channel: 'node', data: { n: i } }));
}
const { events, stream } = await until((all) => all.filter((e) => 'data' in e).length >= 3);
report.events = events.filter((e) => 'data' in e).map((e) => e.data);
stream.close();
const uploaded = JSON.parse((await ask({ ':method': 'POST', ':path': '/backend/upload' }, pattern)).body);
report.uploaded = `${uploaded.bytes} ${uploaded.sum}`;
const downloaded = (await ask({ ':path': `/backend/download?n=${size}` })).body;
report.downloaded = `${downloaded.length} ${sum(downloaded)}`;
const head = (await ask({ ':method': 'HEAD', ':path': '/backend/download?n=100' })).headers;
report.head = `${head[':status']} ${head['content-length']}`;
report.trailer = (await ask({ ':path': '/backend/trailers', te: 'trailers' })).trailers?.['x-sum'];
report.echoes = await Promise.all(Array.from({ length: 50 }, async (_, i) => String((await ask({ ':path': `/backend/echo?n=${i}` })).body)));
report.refused = String((await ask({ ':path': '/nowhere' })).headers[':status']);
report.limited = String((await ask({ ':method': 'POST', ':path': '/limited' }, pattern.subarray(0, 200000))).headers[':status']);
// The same connection goes on.
report.afterwards = session.closed || session.destroyed ? 'the connection was closed' : String((await ask({ ':path': '/backend/echo?n=1' })).headers[':status']);
process.stdout.write(JSON.stringify(report) + '\n');
session.close();
