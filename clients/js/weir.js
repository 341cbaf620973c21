// Follows channels of a Weir server from a browser. See README.md; types are in weir.d.ts.

const minWait = 500, maxWait = 30_000, maxAsked = 900_000; // ms, as in the Go client

const namespaceOf = (channel) => channel.includes(':') ? channel.slice(0, channel.indexOf(':')) : 'default';
const epochOf = (position) => position.slice(0, position.indexOf('-'));
const lost = 'the connection was lost';
const jitter = (ms) => Math.random() * ms;

class Emitter {
  #listeners = {};
  on(type, listener) {
    const set = (this.#listeners[type] ??= new Set());
    set.add(listener);
    return () => set.delete(listener);
  }
  emit(type, event) {
    for (const listener of this.#listeners[type] ?? []) {
      try { listener(event); } catch (e) { setTimeout(() => { throw e; }); } // reported as uncaught, harms nobody else
    }
  }
}

// What a server answered, or why a stream ended for good.
class WeirError extends Error {
  constructor(message, fields) { Object.assign(super(message), fields); }
}

// Where a stream is. Over SSE every event has the whole position. A WebSocket message has
// its own, and takes the place of the part that has the same epoch, or was its namespace's.
class Cursor {
  #parts = new Map(); // epoch → position
  #epochs = new Map(); // namespace → epoch
  constructor(at) { this.set(at); }
  set(at) {
    this.at = at;
    this.#parts = new Map(at && at !== '0' ? at.split('~').map((p) => [epochOf(p), p]) : []);
  }
  move(namespace, position, from) {
    const epoch = epochOf(position);
    const old = this.#epochs.get(namespace) ?? (from && epochOf(from));
    if (old !== epoch) this.#parts.delete(old);
    this.#epochs.set(namespace, epoch);
    this.#parts.set(epoch, position);
    this.at = [...this.#parts.values()].join('~');
  }
  gap(g, namespaces) {
    const id = g.id || g.to;
    if (!id) return;
    if (id.split('~').length >= namespaces) {
      this.set(id);
      if (g.to) this.#epochs.set(g.namespace, epochOf(g.to));
    } else this.move(g.namespace, id.includes('~') ? g.to : id, g.from);
  }
}

// One stream of many channels over any number of connections.
class Stream extends Emitter {
  #o; #url; #channels; #cursor; #token; #transports;
  #stop = () => {}; // ends the connection, or the wait for the next
  #dead = false; #queued = false;
  #at = 0; #works = false; // which transport is tried; the first one has worked
  #failed = 0; #retry; // attempts without success in a row; what the server asked for
  #opened = false; #lasting = false; #refused = false; // the connection; the last token

  constructor(url, o = {}) {
    super();
    this.#o = o;
    this.#url = new URL(url, globalThis.location?.href).href.replace(/\/+$/, '');
    this.#channels = new Set([o.channels ?? []].flat());
    this.#cursor = new Cursor(o.since ?? '');
    const by = { ws: this.#ws, sse: this.#sse };
    this.#transports = (o.transports ?? ['ws', 'sse']).map((t) => by[t]);
    this.#again();
  }

  get position() { return this.#cursor.at; }
  get channels() { return [...this.#channels]; }
  subscribe(...channels) { this.replace([...this.#channels, ...channels]); }
  unsubscribe(...channels) { this.replace(this.channels.filter((c) => !channels.includes(c))); }
  replace(channels) {
    const before = this.#channels;
    this.#channels = new Set(channels);
    // It connects anew at the same position, once for all changes that are made together.
    if (before.size !== this.#channels.size || channels.some((c) => !before.has(c))) this.#again();
  }
  close() {
    this.#dead = true;
    this.#stop();
  }
  // Calls to with every event and the position after it.
  relay(to) {
    for (const type of ['open', 'message', 'gap', 'end', 'down', 'error']) this.on(type, (event) => to(type, event, this.position));
  }

  #again() {
    if (this.#queued) return;
    this.#queued = true;
    queueMicrotask(() => {
      this.#queued = false;
      this.#stop();
      this.#run();
    });
  }

  // Connects again and again, until it is stopped.
  async #run() {
    const stopped = new AbortController(), { signal } = stopped;
    this.#stop = () => stopped.abort();
    while (!this.#dead && this.#channels.size) {
      let error;
      this.#opened = this.#lasting = false;
      try {
        const token = await this.token();
        if (signal.aborted) return;
        await this.#transports[this.#at].call(this, token, signal);
      } catch (e) { error = e; }
      if (signal.aborted) return;
      const { code, status, retry } = error instanceof WeirError ? error : {};
      if (code) this.emit('end', { code, reason: error.message });
      const wait = this.#after(code, status, retry);
      if (wait < 0) {
        this.#dead = true;
        this.emit('error', error);
        return;
      }
      this.emit('down', { error, retry: Math.round(wait) });
      await new Promise((done) => {
        const timer = setTimeout(done, wait);
        signal.addEventListener('abort', () => { clearTimeout(timer); done(); });
      });
      if (signal.aborted) return;
    }
  }

  // How long to wait after a connection ended; less than 0 means for ever.
  #after(code, status, retry = this.#retry) {
    if (this.#lasting) this.#failed = 0;
    if (code === 4401 || status === 401) {
      const again = this.#refused && !this.#lasting; // the callback's token, too
      if (typeof this.#o.token !== 'function' || (again && status)) return -1;
      this.#token = undefined;
      this.#refused = true;
      return again ? this.#wait() : 0;
    }
    this.#refused = false;
    if ((status >= 400 && status < 500 && ![408, 425, 429].includes(status)) || status === 204 || [1008, 4403, 4404].includes(code)) return -1;
    if (code === 1013) this.#failed = Math.max(this.#failed, 3);
    if (this.#opened) {
      if (this.#works) this.#at = 0; // the preferred transport has worked before
    } else if (this.#transports.length > 1 && !status && !code) {
      this.#at = 1 - this.#at;
      if (this.#at && !this.#failed) return 0; // try the other one at once
    }
    return this.#wait(retry);
  }

  // Waits are random, so that clients which lost the same server do not come back together.
  #wait(asked) {
    let ms = Math.min(this.#o.maxBackoff ?? maxWait, minWait * 2 ** this.#failed);
    ms = ms / 2 + jitter(ms / 2);
    const first = this.#failed++ === 0;
    if (asked === undefined) return ms;
    asked = Math.min(asked, maxAsked);
    asked += jitter(asked / 2);
    return first ? asked : Math.max(asked, ms);
  }

  // The token, from the callback only when there is none that is good.
  async token() {
    const { token } = this.#o;
    return typeof token === 'function' ? (this.#token ??= await token()) : token;
  }

  #query(since) {
    const q = new URLSearchParams([...this.#channels].map((c) => ['channel', c]));
    if (this.position) q.set(since, this.position);
    if (this.#o.maxBackoff) q.set('max_backoff', this.#o.maxBackoff / 1000);
    return q;
  }

  #open(transport) {
    if (this.#opened) return;
    this.#opened = true;
    this.#works ||= this.#at === 0;
    this.emit('open', { transport });
  }

  #take(m) {
    this.#lasting = true;
    this.emit('message', m);
  }

  async #ws(token, stop) {
    const q = this.#query('since');
    q.set('hello', '1');
    if (token) q.set('token', token);
    const socket = new WebSocket(`${this.#url.replace(/^http/, 'ws')}/ws?${q}`);
    let quiet;
    try {
      await new Promise((_, fail) => {
        quiet = watch(() => fail(new WeirError('no sign of life')), () => socket.send('{"type":"ping"}'));
        stop.addEventListener('abort', fail);
        socket.onmessage = ({ data }) => {
          if (stop.aborted) return;
          quiet.touch();
          const { type, ...m } = JSON.parse(data);
          if (type === 'subscribed') {
            if (m.id) this.#cursor.set(m.id);
            this.#open('ws');
          } else if (type === 'gap') {
            this.#cursor.gap(m, new Set(this.channels.map(namespaceOf)).size);
            this.emit('gap', m);
          } else if (!type) {
            if (m.id) this.#cursor.move(namespaceOf(m.channel), m.id);
            this.#take(m);
          }
        };
        socket.onclose = ({ code, reason }) =>
          fail(new WeirError(reason || lost, this.#opened && ![1005, 1006].includes(code) ? { code } : {}));
      });
    } finally {
      quiet.stop();
      socket.onmessage = socket.onclose = null;
      socket.close();
    }
  }

  async #sse(token, stop) {
    const cut = new AbortController();
    const abort = () => cut.abort();
    stop.addEventListener('abort', abort);
    const quiet = watch(abort);
    this.#event = {};
    try {
      const q = this.#query('lastEventId'); // a header of that name would cost a preflight
      q.set('envelope', '1');
      const headers = { Accept: 'text/event-stream' };
      if (token) headers.Authorization = `Bearer ${token}`;
      const res = await fetch(`${this.#url}/sse?${q}`, { headers, signal: cut.signal, cache: 'no-store' });
      if (!res.ok || res.status === 204) {
        const { error = {} } = await res.json().catch(() => ({}));
        const after = Number(res.headers.get('Retry-After'));
        throw new WeirError(error.message ?? `the server answered ${res.status}`, { status: res.status, hint: error.hint, retry: after ? after * 1000 : undefined });
      }
      const reader = res.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ''; ;) {
        const { value, done } = await reader.read();
        if (done) throw new WeirError(lost);
        quiet.touch();
        const lines = (rest + value).split('\n');
        rest = lines.pop();
        for (const line of lines) {
          if (stop.aborted) return;
          this.#line(line.replace(/\r$/, ''));
        }
      }
    } finally {
      quiet.stop();
      stop.removeEventListener('abort', abort);
      cut.abort();
    }
  }
  #event = {};

  // One line of an event stream (WHATWG HTML §9.2.6).
  #line(line) {
    const e = this.#event;
    if (line) {
      const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
      if (field === 'data') e.data = e.data === undefined ? value : `${e.data}\n${value}`;
      else if (field === 'retry') this.#retry = Number(value) || 0;
      else if (field) e[field] = value;
      return;
    }
    this.#event = {};
    const body = e.data && JSON.parse(e.data);
    if (e.event === 'end') throw new WeirError(body.reason, { code: body.code, retry: this.#retry });
    if (e.id) this.#cursor.set(e.id);
    this.#open('sse');
    if (e.event === 'gap') this.emit('gap', body);
    else if (body && !e.event) this.#take(body);
  }
}

// Asks after 45 s without a touch, and cuts 15 s later; before the answer to the first
// request cuts after 15 s. Timers of hidden pages run once a minute.
function watch(cut, ask) {
  let last = 0, asked = Date.now();
  const timer = setInterval(() => {
    if (!asked && Date.now() - last >= 45_000) {
      asked = Date.now();
      ask?.();
    } else if (asked && Date.now() - asked >= 14_000) cut();
  }, 15_000);
  return { touch() { last = Date.now(); asked = 0; }, stop() { clearInterval(timer); } };
}

// A tab's end of a stream that a SharedWorker has for all tabs.
class Shared extends Emitter {
  #port; #channels; #o; #url; #position; #leave; #unlock;
  constructor(url, o, worker) {
    super();
    this.#o = o;
    this.#url = url;
    this.#channels = new Set([o.channels ?? []].flat());
    this.#position = o.since ?? '';
    this.#port = worker.port;
    this.#port.onmessage = ({ data }) => this.#receive(data);
    const gone = ({ persisted }) => persisted && this.#send({ do: 'leave' }), back = ({ persisted }) => persisted && this.#join();
    globalThis.addEventListener?.('pagehide', gone);
    globalThis.addEventListener?.('pageshow', back);
    this.#leave = () => { removeEventListener('pagehide', gone); removeEventListener('pageshow', back); };
    // The worker gets the lock when this tab has gone, however it went.
    const lock = `weir-${crypto.getRandomValues(new Uint32Array(4)).join('-')}`;
    navigator.locks?.request(lock, () => new Promise((done) => { this.#unlock = done; this.#send({ do: 'lock', lock }); }));
    // Its script may not be there: then this tab has a stream of its own.
    worker.onerror = () => {
      this.close();
      const own = new Stream(url, { ...o, channels: this.channels, since: this.#position });
      this.#port = { postMessage: (m) => (m.do === 'leave' ? own.close() : m.do === 'channels' && own.replace(m.channels)) };
      own.relay((type, event, position) => this.#receive({ type, event, position }));
    };
    this.#join();
  }

  get position() { return this.#position; }
  get channels() { return [...this.#channels]; }
  subscribe(...channels) { channels.forEach((c) => this.#channels.add(c)); this.#changed(); }
  unsubscribe(...channels) { channels.forEach((c) => this.#channels.delete(c)); this.#changed(); }
  close() { this.#leave(); this.#send({ do: 'leave' }); this.#unlock?.(); }

  #changed() { this.#send({ do: 'channels', channels: this.channels }); }
  #send(m) { this.#port.postMessage(m); }
  #join() {
    const { token, transports, maxBackoff } = this.#o;
    this.#send({ do: 'join', url: this.#url, channels: this.channels, since: this.#position, transports, maxBackoff, token: typeof token === 'function' ? undefined : token, asks: typeof token === 'function' });
  }
  async #receive({ type, event, position, ask }) {
    if (ask) {
      let answer = {};
      try { answer = { token: await this.#o.token() }; } catch (e) { answer = { error: String(e) }; }
      this.#send({ do: 'token', ask, ...answer });
      return;
    }
    if (position) this.#position = position;
    if (type) this.emit(type, event);
  }
}

// Follows channels: with one connection for all tabs where o.share is set and the browser
// can, with one of this page's own otherwise.
export function connect(url, o = {}) {
  url = new URL(url, globalThis.location?.href).href;
  if (o.share) {
    try {
      const name = `weir ${o.share === true ? '' : o.share}`;
      return new Shared(url, o, new SharedWorker(new URL('./worker.js', import.meta.url), { type: 'module', name }));
    } catch { /* there are none here, or this file is from another origin */ }
  }
  return new Stream(url, o);
}

export { Stream, namespaceOf }; // for worker.js alone
