// Opens the event stream that its argument names with every client of npm that reads one, and
// prints what each gets: {"from","event":"open"} and {"from","event":"message","data":{id,data}}.
// It ends when its standard input does.
import { createRequire } from 'node:module';
import { fetchEventSource } from '@microsoft/fetch-event-source';
import { EventSource as EventSource3 } from 'eventsource';
import EventSource1 from 'eventsource1';
import EventSource2 from 'eventsource2';
import { EventSource as Undici } from 'undici';

const LaunchDarkly = createRequire(import.meta.url)('launchdarkly-eventsource').EventSource;
globalThis.window = globalThis; // fetch-event-source is for pages

const url = process.argv[2];
const say = (from, event, data) => process.stdout.write(JSON.stringify({ from, event, data }) + '\n');
const got = (from, e) => say(from, 'message', { id: e.lastEventId ?? e.id, data: e.data });

const classes = { 'eventsource 1': EventSource1, 'eventsource 2': EventSource2, 'eventsource 3': EventSource3, 'launchdarkly-eventsource': LaunchDarkly, undici: Undici };
for (const [name, Class] of Object.entries(classes)) {
  const source = new Class(url);
  source.addEventListener('open', () => say(name, 'open'));
  source.addEventListener('message', (e) => got(name, e));
  source.addEventListener('error', () => {}); // it comes back
}
const fetched = 'fetch-event-source';
fetchEventSource(url, {
  openWhenHidden: true,
  onopen: async () => say(fetched, 'open'),
  onmessage: (e) => { if (e.event === '' && e.data !== '') got(fetched, e); },
  onclose: () => { throw new Error('come back'); },
  onerror: () => undefined,
});

process.stdin.resume().on('close', () => process.exit(0));
