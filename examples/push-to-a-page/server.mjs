// Your application: it serves the page and says what its user may follow.
import { createHmac } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';

const secret = readFileSync('jwt-secret', 'utf8').trim();
const encode = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');

function token(user, channels) {
  const now = Math.floor(Date.now() / 1000);
  const text = `${encode({ alg: 'HS256', typ: 'JWT' })}.${encode({ sub: user, iat: now, exp: now + 300, weir: { subscribe: channels } })}`;
  return `${text}.${createHmac('sha256', secret).update(text).digest('base64url')}`;
}

const files = {
  '/': ['index.html', 'text/html'],
  '/client/weir.js': ['../../clients/js/weir.js', 'text/javascript'],
  '/client/worker.js': ['../../clients/js/worker.js', 'text/javascript'],
};

createServer(({ url }, res) => {
  const path = url.split('?')[0];
  if (path === '/token') return res.end(token('alice', ['orders:42'])); // after you have checked who it is
  if (!files[path]) return res.writeHead(404).end();
  const [name, type] = files[path];
  res.setHeader('Content-Type', type);
  res.end(readFileSync(name));
}).listen(3000, '127.0.0.1', () => console.log('http://127.0.0.1:3000'));
