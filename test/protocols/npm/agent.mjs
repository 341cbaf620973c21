// Holds clients that others wrote and does with them what its standard input says,
// one JSON object a line; prints answers and events in the same way. It ends when its
// standard input does.
//
//   {"id":1,"new":"Centrifuge","as":"a","args":[…]}        makes one; its name is a
//   {"id":2,"on":"a","call":"publish","args":[…],"as":"b"}  calls a method; what it returns is named b
//     with "then":[["on","x",{"$emit":"x"}],…]              and these methods of b are called at once
//   {"id":3,"on":"a","get":"connection.state"}              reads a property
//   {"id":4,"drop":"a"}                                     forgets a name
//
// are answered {"id","result"} or {"id","error"}. Among the arguments
//
//   {"$emit":"x"}   is a function that prints {"from","event":"x","data"}
//   {"$ask":"x"}    is one that prints {"from","ask":n,"event":"x","data"} and returns what {"answer":n,"result"} brings
//   {"$bytes":v}    is v as JSON in a Uint8Array
//   {"$ref":"a"}    is what is named a
//
// Texts of more than 4096 characters are printed as the first 32 and how many there are.
import { createInterface } from 'node:readline';
import { createRequire } from 'node:module';
import { Centrifuge } from 'centrifuge';
import { Centrifuge as CentrifugeProtobuf } from 'centrifuge/build/protobuf';
import { EventSource } from 'eventsource';
import EventSource2 from 'eventsource2';
import Echo from 'laravel-echo';
import PusherServer from 'pusher';
import { WebSocket } from 'ws';

const require = createRequire(import.meta.url);
const pusherJS = require('pusher-js');
const Pusher = pusherJS.Pusher ?? pusherJS.default ?? pusherJS;
// The build for browsers (for their workers, which have no document) wants their globals.
globalThis.self = globalThis;
globalThis.WebSocket = WebSocket;
const browserJS = require('pusher-js/dist/worker/pusher-with-encryption.worker.js');
const BrowserPusher = browserJS.default ?? browserJS;

const decoder = new TextDecoder();
const encoder = new TextEncoder();
const things = new Map();
const open = new Map();
let asked = 0;

const content = (bytes) => bytes.length ? JSON.parse(decoder.decode(bytes)) : null;

// plain is v as JSON shows it; bytes are the JSON that they hold.
const plain = (v) => v === undefined ? null : JSON.parse(JSON.stringify(v, (_, x) => {
  if (typeof x === 'string' && x.length > 4096) return `${x.slice(0, 32)}...${x.length}`;
  if (x instanceof Uint8Array) return content(x);
  if (x?.type === 'Buffer' && Array.isArray(x.data)) return content(Uint8Array.from(x.data));
  if (x instanceof Map) return Object.fromEntries(x);
  if (x instanceof Error) return { code: x.code, message: x.message };
  return x;
}));
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');
const ask = (from, event, data) => new Promise((resolve) => {
  open.set(++asked, resolve);
  say({ from, ask: asked, event, data: plain(data) });
});

// node gives the SDK what a browser would have.
const node = (options) => ({ websocket: WebSocket, eventsource: EventSource, fetch, readableStream: ReadableStream, emulationEndpoint: options.emulation, ...options });

// authorizer signs channels as an application does, with the library for servers.
const authorizer = (server, user) => (socketId, channel) => server.authorizeChannel(socketId, channel,
  channel.startsWith('presence-') ? { user_id: user, user_info: { name: `name of ${user}` } } : undefined);

const pusher = (Class) => (key, options, server, user) => new Class(key, {
  cluster: 'x', forceTLS: false, enabledTransports: ['ws'], disableStats: true,
  channelAuthorization: { customHandler: ({ socketId, channelName }, done) => done(null, authorizer(server, user)(socketId, channelName)) },
  userAuthentication: { customHandler: ({ socketId }, done) => done(null, server.authenticateUser(socketId, { id: user })) },
  ...options,
});

const makers = {
  Centrifuge: (endpoint, options) => new Centrifuge(endpoint, node(options)),
  // With the EventSource that the SDK itself is tested with.
  CentrifugeEventSource2: (endpoint, options) => new Centrifuge(endpoint, { ...node(options), eventsource: EventSource2 }),
  CentrifugeProtobuf: (endpoint, options) => new CentrifugeProtobuf(endpoint, node(options)),
  PusherServer: (options) => new PusherServer(options),
  Pusher: pusher(Pusher),
  BrowserPusher: pusher(BrowserPusher),
  Echo: (key, options, server, user) => new Echo({
    broadcaster: 'reverb', Pusher, key, forceTLS: false, enabledTransports: ['ws'], disableStats: true,
    authorizer: (channel) => ({ authorize: (socketId, done) => done(null, authorizer(server, user)(socketId, channel.name)) }),
    ...options,
  }),
  EventSource: (url, headers) => new EventSource(url, { fetch: (u, init) => fetch(u, { ...init, headers: { ...init.headers, ...headers } }) }),
};

// argument makes what the line says it is. A function speaks for the thing from.
function argument(from, v) {
  if (Array.isArray(v)) return v.map((x) => argument(from, x));
  if (v === null || typeof v !== 'object') return v;
  if ('$emit' in v) {
    return (...data) => {
      const e = data[0];
      const shown = e?.type && 'lastEventId' in e ? { id: e.lastEventId, data: e.data }
        : e instanceof Event || e?.constructor?.name.endsWith('Event') ? { type: e.type, code: e.code, message: e.message, state: things.get(from)?.readyState } : e;
      say({ from, event: v.$emit, data: plain(shown), more: data.length > 1 ? plain(data[1]) : undefined });
    };
  }
  if ('$ask' in v) return (data) => ask(from, v.$ask, data);
  if ('$bytes' in v) return encoder.encode(JSON.stringify(v.$bytes));
  if ('$ref' in v) return things.get(v.$ref);
  return Object.fromEntries(Object.entries(v).map(([k, x]) => [k, argument(from, x)]));
}

// find returns what has the last name of a path that begins at on, and that name.
function find(on, path) {
  const names = path.split('.');
  const last = names.pop();
  return [names.reduce((o, k) => o?.[k], on), last];
}

function then(c) {
  for (const [path, ...args] of c.then ?? []) {
    const [on, method] = find(things.get(c.as), path);
    on[method](...argument(c.as, args));
  }
}

async function run(c) {
  if (c.drop) return void things.delete(c.drop);
  if (c.new) {
    things.set(c.as, makers[c.new](...argument(c.as, c.args ?? [])));
    then(c);
    return null;
  }
  const [on, last] = find(things.get(c.on), c.get ?? c.call);
  if (c.get) return on?.[last];
  let result = on[last](...argument(c.as ?? c.on, c.args ?? []));
  if (c.as) things.set(c.as, result);
  then(c);
  if (c.as || result === on) return null;
  result = await result;
  return typeof result?.text === 'function' ? { status: result.status, body: await result.text() } : result;
}

createInterface({ input: process.stdin }).on('line', (text) => {
  const c = JSON.parse(text);
  if ('answer' in c) {
    open.get(c.answer)(c.result);
    open.delete(c.answer);
    return;
  }
  run(c).then(
    (result) => say({ id: c.id, result: plain(result) }),
    (e) => say({ id: c.id, error: { code: e.code ?? e.status ?? 0, message: e.message ?? String(e), body: e.body } }),
  );
}).on('close', () => process.stdout.write('', () => process.exit(0)));
