// Follows one channel with a client that others wrote and prints a line of JSON
// for each event: node client.mjs '{"library","url","channel"}'.
// It ends when its standard input does.
import diagnostics from 'node:diagnostics_channel';
import { EventSource as NpmEventSource } from 'eventsource';
import { EventSource as UndiciEventSource, WebSocket as UndiciWebSocket } from 'undici';
import { WebSocket as NpmWebSocket } from 'ws';

const { library, url, channel } = JSON.parse(process.argv[2]);
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');

// How the newest response's body is encoded, and what came of the newest request: an EventSource does not tell.
let coding = '';
let outcome = 'no request';
let refused = false;
diagnostics.subscribe('undici:request:error', ({ error }) => {
  outcome = `${outcome}, ${error.name} ${error.code ?? ''} ${error.message}`;
  refused = error.code === 'ECONNREFUSED';
});
diagnostics.subscribe('undici:request:trailers', () => { outcome += ', complete'; });
diagnostics.subscribe('undici:request:headers', ({ response }) => {
  coding = '';
  outcome = `status ${response.statusCode}`;
  refused = false;
  for (let i = 0; i < response.headers.length; i += 2) {
    if (String(response.headers[i]).toLowerCase() === 'content-encoding') coding = String(response.headers[i + 1]);
  }
});

// EventSource resumes by itself: it repeats Last-Event-ID. That of undici 6 does not where its connection is refused
// (it waits, and is closed meanwhile), so that a program which uses it has to make another one.
function events(EventSource) {
  let last = '0';
  let session = 0;
  const follow = () => {
    const source = new EventSource(`${url}/sse?channel=${channel}&lastEventId=${encodeURIComponent(last)}`);
    const heard = (kind) => (e) => {
      last = e.lastEventId || last;
      say({ kind, session, coding, id: e.lastEventId, data: e.data });
    };
    source.addEventListener('open', () => say({ kind: 'open', session: ++session }));
    source.addEventListener('message', heard('message'));
    source.addEventListener('gap', heard('gap'));
    let over = false;
    source.addEventListener('error', () => setImmediate(() => { // undici says so, twice, before it is closed
      if (source.readyState !== 2 || over) return;
      over = true;
      if (refused) setTimeout(follow, 100);
      else say({ kind: 'fatal', session, data: `the EventSource gave up: ${outcome}` });
    }));
  };
  follow();
}

// The body of a fetch, read by hand. An event that its empty line did not end is
// dropped.
async function body() {
  let last = '0';
  for (let session = 1; ; ) {
    try {
      const response = await fetch(`${url}/sse?channel=${channel}`, { headers: { 'Last-Event-ID': last } });
      if (response.status !== 200) throw new Error(`status ${response.status}`);
      coding = response.headers.get('content-encoding') ?? '';
      say({ kind: 'open', session });
      let text = '';
      for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
        const blocks = (text + piece).split('\n\n');
        text = blocks.pop();
        for (const block of blocks) {
          const event = Object.fromEntries(block.split('\n').map((l) => [l.slice(0, l.indexOf(':')), l.slice(l.indexOf(':') + 2)]));
          last = event.id ?? last;
          if ('data' in event) say({ kind: event.event ?? 'message', session, coding, id: last, data: event.data });
        }
      }
      session++;
    } catch (e) {
      if (!(e instanceof TypeError)) say({ kind: 'fatal', data: String(e) }); // a TypeError is the network
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

// A WebSocket has no memory of its own: since= carries it over.
function frames(WebSocket) {
  let since = '0';
  let session = 0;
  const connect = () => {
    const socket = new WebSocket(`${url.replace(/^http/, 'ws')}/ws?channel=${channel}&hello=1&since=${encodeURIComponent(since)}`);
    socket.addEventListener('open', () => {
      say({ kind: 'open', session: ++session });
      for (let i = 0; i < 2; i++) socket.send('{"type":"ping"}');
    });
    socket.addEventListener('message', (e) => {
      const frame = JSON.parse(e.data);
      since = frame.id ?? since;
      if (frame.type === 'subscribed') return;
      const kind = frame.type ?? 'message';
      const data = kind === 'message' ? JSON.stringify(frame.data) : e.data;
      say({ kind, session, coding: socket.extensions, id: frame.id, data });
    });
    // undici 6 has no close event for a connection that failed.
    let ended = false;
    const again = () => {
      if (!ended) setTimeout(connect, 100);
      ended = true;
    };
    socket.addEventListener('error', again);
    socket.addEventListener('close', again);
  };
  connect();
}

({
  'eventsource': () => events(NpmEventSource),
  'undici EventSource': () => events(UndiciEventSource),
  'fetch': body,
  'ws': () => frames(NpmWebSocket),
  'undici WebSocket': () => frames(UndiciWebSocket),
})[library]();

process.stdin.on('end', () => process.exit(0)).resume();
