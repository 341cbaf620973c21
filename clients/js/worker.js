// The SharedWorker of weir.js: one stream of everybody's channels for each server.
import { Stream, namespaceOf } from './weir.js';

const servers = new Map(); // URL → { stream, tabs, opened }
const remembered = 512; // messages of the shared stream by which a tab that catches up finds it
let questions = 0;

// A tab. One that resumes from a position of its own has a stream for that, until in each
// namespace the last message of that stream is found among those of the shared one.
class Tab {
  #port; #recent = []; #joined = new Set(); #last = {}; #answers = new Map();
  constructor(port, channels) {
    this.#port = port;
    this.channels = new Set(channels);
  }

  send(type, event, position) {
    const { message, code, status, hint, retry } = event.error ?? (type === 'error' ? event : {});
    const error = { message, code, status, hint, retry }; // an Error loses its fields on the way
    this.#port.postMessage({ type, event: type === 'error' ? error : event.error ? { ...event, error } : event, position });
  }

  catchUp(o) {
    this.own = new Stream(o.url, o);
    this.own.relay((type, event, position) => {
      if (type === 'message') {
        const namespace = namespaceOf(event.channel);
        if (this.#joined.has(namespace)) return;
        this.#last[namespace] = event.id;
        this.send(type, event, this.#joined.size ? undefined : position);
        this.#join(namespace);
      } else if (type === 'gap' || type === 'error') this.send(type, event);
    });
  }

  live(type, event, position) {
    if (type === 'message') {
      if (!this.channels.has(event.channel)) return;
      const namespace = namespaceOf(event.channel);
      if (this.own && !this.#joined.has(namespace)) {
        this.#recent.push([event, position]);
        if (this.#recent.length > remembered) this.#recent.shift();
        this.#join(namespace);
        return;
      }
    } else if (type === 'gap' && (this.own || ![...this.channels].some((c) => namespaceOf(c) === event.namespace))) return;
    this.send(type, event, this.own ? undefined : position);
  }

  #join(namespace) {
    const of = this.#recent.filter(([m]) => namespaceOf(m.channel) === namespace);
    const at = of.findIndex(([m]) => m.id && m.id === this.#last[namespace]);
    if (at < 0) return;
    this.#joined.add(namespace);
    of.slice(at + 1).forEach(([m]) => this.send('message', m));
    if ([...this.channels].every((c) => this.#joined.has(namespaceOf(c)))) this.stop();
  }

  token() {
    return new Promise((done, fail) => {
      const ask = ++questions;
      this.#answers.set(ask, ({ token, error }) => (error ? fail(new Error(error)) : done(token)));
      this.#port.postMessage({ ask });
    });
  }
  answer(a) {
    this.#answers.get(a.ask)?.(a);
    this.#answers.delete(a.ask);
  }

  stop() {
    this.own?.close();
    this.own = undefined;
    this.#recent = [];
  }
}

// Any tab's callback will do; one that is frozen does not answer, and another is asked.
function tokenOf(tabs) {
  let answered = false;
  return Promise.any([...tabs].reverse().map(async (t, i) => {
    await new Promise((done) => setTimeout(done, i * 2000));
    if (answered) throw answered;
    const token = await t.token();
    answered = true;
    return token;
  })).catch((e) => { throw e.errors[0]; });
}

function fit({ stream, tabs }) { stream.replace([...new Set([...tabs].flatMap((t) => [...t.channels]))]); }

addEventListener('connect', ({ ports: [port] }) => {
  let server, tab;
  const leave = () => {
    tab?.stop();
    if (!server?.tabs.delete(tab)) return;
    fit(server);
    if (server.tabs.size === 0) {
      server.stream.close();
      servers.delete(server.url);
    }
  };
  const join = ({ url, channels, since, transports, maxBackoff, token, asks }) => {
    tab = new Tab(port, channels);
    server = servers.get(url);
    const o = { url, channels, since, transports, maxBackoff, token };
    if (!server) {
      const s = server = { url, tabs: new Set(), opened: undefined };
      servers.set(url, s);
      if (asks) o.token = () => tokenOf(s.tabs);
      s.stream = new Stream(url, o);
      s.stream.relay((type, event, position) => {
        if (type === 'open') s.opened = event;
        if (type === 'down') s.opened = undefined;
        if (type === 'error') servers.delete(url);
        s.tabs.forEach((t) => t.live(type, event, position));
      });
    } else {
      if (since) tab.catchUp({ ...o, token: () => server.stream.token() });
      if (server.opened) tab.send('open', server.opened, since ? undefined : server.stream.position);
    }
    server.tabs.add(tab);
    fit(server);
  };
  const does = {
    join(m) { leave(); join(m); },
    leave,
    lock: ({ lock }) => navigator.locks.request(lock, leave),
    channels: ({ channels }) => {
      tab.channels = new Set(channels);
      tab.own?.replace(channels);
      fit(server);
    },
    token: (m) => tab.answer(m),
  };
  port.onmessage = ({ data }) => does[data.do](data);
});
