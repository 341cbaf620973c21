// Follows a recorded answer with an EventSource that others wrote and prints a line of
// JSON for each event: node record.mjs '{"library","url"}'. An EventSource comes back by
// itself, with Last-Event-ID, until it is answered 204. It ends when its standard input does.
import { EventSource as NpmEventSource } from 'eventsource';
import { EventSource as UndiciEventSource } from 'undici';

const { library, url } = JSON.parse(process.argv[2]);
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');
const source = new { eventsource: NpmEventSource, undici: UndiciEventSource }[library](url);
let session = 0;
source.addEventListener('open', () => say({ kind: 'open', session: ++session }));
source.addEventListener('token', (e) => say({ kind: 'token', session, id: e.lastEventId, data: e.data }));
source.addEventListener('message', (e) => say({ kind: 'message', session, id: e.lastEventId, data: e.data }));
source.addEventListener('error', (e) => {
  if (source.readyState === 2) say({ kind: 'closed', session, data: String(e.data ?? '') });
});
process.stdin.resume();
process.stdin.on('end', () => {
  source.close();
  process.exit(0);
});
