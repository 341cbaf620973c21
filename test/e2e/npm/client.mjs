// Follows one channel with a client that others wrote and prints a line of JSON
// for each event: node client.mjs '{"library","url","channel","last"}'.
// It ends when its standard input does.
import { EventSource as NpmEventSource } from 'eventsource';
import { EventSource as UndiciEventSource, WebSocket as UndiciWebSocket } from 'undici';
import { WebSocket as NpmWebSocket } from 'ws';

const { library, url, channel } = JSON.parse(process.argv[2]);
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');

// EventSource resumes by itself: it repeats Last-Event-ID.
function events(EventSource) {
  const source = new EventSource(`${url}/sse?channel=${channel}&lastEventId=0`);
  let session = 0;
  source.addEventListener('open', () => say({ kind: 'open', session: ++session }));
  source.addEventListener('message', (e) => say({ kind: 'message', session, id: e.lastEventId, data: e.data }));
  source.addEventListener('gap', (e) => say({ kind: 'gap', session, id: e.lastEventId, data: e.data }));
  source.addEventListener('error', () => {
    if (source.readyState === 2) say({ kind: 'fatal', session, data: 'the EventSource gave up' });
  });
}

// A WebSocket has no memory of its own: since= carries it over.
function frames(WebSocket) {
  let since = '0';
  let session = 0;
  const connect = () => {
    const socket = new WebSocket(`${url.replace(/^http/, 'ws')}/ws?channel=${channel}&hello=1&since=${encodeURIComponent(since)}`);
    socket.addEventListener('open', () => say({ kind: 'open', session: ++session, data: socket.extensions }));
    socket.addEventListener('message', (e) => {
      const frame = JSON.parse(e.data);
      since = frame.id;
      if (frame.type === 'subscribed') return;
      const kind = frame.type ?? 'message';
      say({ kind, session, id: frame.id, data: kind === 'message' ? JSON.stringify(frame.data) : e.data });
    });
    socket.addEventListener('error', () => {});
    socket.addEventListener('close', () => setTimeout(connect, 100));
  };
  connect();
}

({
  'eventsource': () => events(NpmEventSource),
  'undici EventSource': () => events(UndiciEventSource),
  'ws': () => frames(NpmWebSocket),
  'undici WebSocket': () => frames(UndiciWebSocket),
})[library]();

process.stdin.on('end', () => process.exit(0)).resume();
