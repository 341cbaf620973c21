// By hand: publish, subscribe, and follow one message to the sockets.
import { $, attr, el, list, text } from "../dom.js";
import { ask, post, say } from "../api.js";
import { bytes, count, time } from "../format.js";
import { messageRow } from "./channels.js";

// payload is JSON if it is, and text otherwise.
function payload(s) {
  try { return JSON.parse(s); } catch { return s; }
}

export function startTools() {
  $("pub-form").addEventListener("submit", publish);
  $("trace-form").addEventListener("submit", trace);
  $("sub-form").addEventListener("submit", subscribe);
  list($("sub"), [], () => "", () => null, () => {}, "Messages come here.");
  list($("waterfall"), [], () => "", () => null, () => {}, "How long the broker, the shards and the sockets take for one message.");
}

const field = (form, name) => form.elements.namedItem(name);

async function publish(e) {
  e.preventDefault();
  const form = e.target, note = $("pub-note"), body = { channel: field(form, "channel").value.trim(), data: payload(field(form, "data").value) };
  if (field(form, "key").value) body.key = field(form, "key").value;
  try {
    const { result } = await post("/api/publish", body);
    attr(note, "class", "note good");
    text(note, result?.offset ? `published on ${body.channel} at offset ${result.offset}` : `published on ${body.channel}`);
  } catch (err) {
    attr(note, "class", "note bad");
    text(note, say(err));
  }
}

async function trace(e) {
  e.preventDefault();
  const form = e.target, note = $("trace-note"), button = form.querySelector("button");
  button.disabled = true;
  attr(note, "class", "note");
  text(note, "on its way …");
  try {
    let t = await post("/api/trace", { channel: field(form, "channel").value.trim(), data: payload(field(form, "data").value) });
    for (let i = 0; i < 70 && (t.state === "waiting" || t.state === "running"); i++) {
      t = await ask(`/api/trace/${encodeURIComponent(t.id)}?wait=1`, { patience: 70_000 });
    }
    waterfall(t);
  } catch (err) {
    attr(note, "class", "note bad");
    text(note, say(err));
  } finally {
    button.disabled = false;
  }
}

function waterfall(t) {
  const note = $("trace-note"), good = t.state === "done";
  const reached = t.shards.reduce((n, s) => n + s.delivered, 0);
  attr(note, "class", good ? "note" : "note bad");
  text(note, good ? `${count(reached)} ${reached === 1 ? "delivery" : "deliveries"} in ${time(t.done_seconds)}` : t.error || `${t.state}: not everything was seen in time`);
  const shards = [...t.shards].sort((a, b) => a.loop - b.loop);
  const end = Math.max(t.stored_seconds, t.delivered_seconds, t.queued_seconds, t.done_seconds, ...shards.map((s) => s.written_seconds), 1e-9);
  const steps = [
    ["Stored by the broker", 0, t.stored_seconds, "soft"],
    ["Brought to the hub", 0, t.delivered_seconds, "soft"],
    ["In every shard's queue", t.delivered_seconds, t.queued_seconds, "water"],
    ...shards.map((s) => [`Loop ${s.loop}: ${count(s.delivered)} × ${s.delivered ? bytes(s.sent_bytes / s.delivered) : "0 B"}`, s.woken_seconds, s.written_seconds, "good"]),
  ].filter(([, , to]) => to > 0);
  if (shards.length === 0 && good) steps.push(["No subscriber on this node", t.queued_seconds, t.done_seconds, "soft"]);
  const rows = steps.map(([name, from, to, tone]) => {
    const bar = el("i");
    bar.style.setProperty("--a", `${Math.min(99, (100 * from) / end).toFixed(2)}%`);
    bar.style.setProperty("--w", `${Math.max(0, (100 * (to - from)) / end).toFixed(2)}%`);
    bar.style.setProperty("--tone", `var(--${tone})`);
    return el("li", {}, el("span", { title: name }, name), el("span", { class: "rail" }, bar), el("span", {}, time(to)));
  });
  $("waterfall").replaceChildren(el("ol", { "data-state": t.state }, ...rows));
  delete $("waterfall").weirRows;
}

// A subscription: what comes is gathered and shown a frame at a time.
let source = null, waiting = [], drawn = false, total = 0;
const kept = 100;

function subscribe(e) {
  e.preventDefault();
  if (source) {
    end("not subscribed");
    return;
  }
  const form = e.target, names = field(form, "channels").value.split(/\s+/).filter(Boolean);
  const q = new URLSearchParams(names.map((n) => ["channel", n]));
  const from = field(form, "from").value;
  if (from) q.set("lastEventId", from);
  total = 0;
  waiting = [];
  $("sub").replaceChildren();
  const s = new EventSource(`/api/subscribe?${q}`);
  source = s;
  text($("sub-button"), "Stop");
  note("connecting …");
  s.onopen = () => note(`subscribed to ${names.length === 1 ? names[0] : `${names.length} channels`}`);
  s.onmessage = (m) => {
    let v;
    try { v = JSON.parse(m.data); } catch { v = { data: m.data, time: Date.now() }; }
    total++;
    push({ time: v.time ?? Date.now(), id: v.id, key: v.key, channel: v.channel, data: v.data });
  };
  for (const kind of ["gap", "end"]) {
    s.addEventListener(kind, (m) => push({ time: Date.now(), data: `${kind} ${m.data}`, raw: true, event: true }));
  }
  s.onerror = async () => {
    if (s !== source) return;
    if (s.readyState !== EventSource.CLOSED) {
      note("the connection was cut, trying again …");
      return;
    }
    end("not subscribed");
    // A stream does not say why it was refused; asking does, and is ended at once.
    const stop = new AbortController();
    try {
      const r = await fetch(`/api/subscribe?${q}`, { signal: stop.signal });
      if (!r.ok) {
        const b = await r.json().catch(() => null);
        note(b?.error ? `${b.error.message}${b.error.hint ? ` (${b.error.hint})` : ""}` : `HTTP ${r.status}`, true);
      }
    } catch (err) {
      note(say(err), true);
    } finally {
      stop.abort();
    }
  };
}

function end(why) {
  source?.close();
  source = null;
  text($("sub-button"), "Subscribe");
  note(total ? `${why}; ${count(total)} came` : why);
}

function note(message, bad = false) {
  attr($("sub-note"), "class", bad ? "note bad" : "note");
  text($("sub-note"), message);
}

function push(m) {
  waiting.push(m);
  if (waiting.length > kept) waiting.shift();
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(() => {
    drawn = false;
    const ol = $("sub");
    ol.prepend(...waiting.reverse().map(messageRow));
    waiting = [];
    while (ol.childElementCount > kept) ol.lastElementChild.remove();
    if (source) note(`${count(total)} ${total === 1 ? "message" : "messages"}`);
  });
}

addEventListener("pagehide", () => source?.close());
