// The process from within: loops, whose queue, canaries, stalls, memory, roles, admission.
import { $, bars, cells, el, fillTrack, list, text, track } from "../dom.js";
import { bytes, count, percent, rate, time } from "../format.js";

export function showRuntime(v) {
  protocols(v);
  suites(v.connections.suites ?? []);
  loops(v);
  const g = v.governor;
  if (g?.enabled) {
    queue(g);
    canaries(g);
    stalls(g);
    memory(g);
  }
  admission(v.admission ?? []);
}

function protocols(v) {
  const all = Object.entries(v.connections.by_protocol ?? {}).filter(([name, n]) => n > 0 || ["sse", "websocket", "http"].includes(name));
  const most = Math.max(1, ...all.map(([, n]) => n));
  bars($("protocols"), all.sort(([a], [b]) => a.localeCompare(b)).map(([name, n]) => ({ name: name.replaceAll("_", " "), value: count(n), share: n / most })), "Nobody is connected.");
}

// suites are the TLS handshakes since the start, the most frequent first.
function suites(all) {
  const box = $("tls");
  if (box.hidden === all.length > 0) box.hidden = all.length === 0;
  const sum = all.reduce((n, s) => n + s.handshakes, 0);
  bars($("suites"), [...all].sort((a, b) => b.handshakes - a.handshakes).slice(0, 6).map((s) => ({
    name: `${s.protocol} ${s.suite.replace(/^.*_WITH_|^TLS_/, "").replace(/_SHA\d+$|_SM3$/, "").replaceAll("_", " ")}`, value: count(s.handshakes), share: s.handshakes / Math.max(1, sum),
  })), "No handshake yet.");
}

// toneOf is a loop's, by the causes that name it.
function toneOf(g, loop) {
  const c = (g?.state?.causes ?? []).filter((x) => x.loop === loop);
  return c.some((x) => x.state === "inflection") ? "bad" : c.length ? "warn" : "water";
}

function loops(v) {
  list($("loops").tBodies[0], v.loops ?? [], (l) => l.loop,
    () => {
      const row = cells("", "n", "", "n", "n", "n", "n"), t = track();
      row.cells[2].append(el("div", { class: "with" }, el("span", { class: "n" }), t));
      return row;
    },
    (row, l) => {
      const c = row.cells;
      text(c[0], l.loop);
      text(c[1], count(l.connections));
      text(c[2].firstChild.firstChild, `${(l.busy * 100).toFixed(0)} %`);
      fillTrack(c[2].firstChild.lastChild, l.busy, toneOf(v.governor, l.loop));
      text(c[3], time(l.tick_p99_seconds));
      text(c[4], l.current_tick_seconds > 0.001 ? time(l.current_tick_seconds) : "–");
      text(c[5], count(l.inbox + l.queue));
      text(c[6], rate(l.messages_per_second));
    }, "No loops.");
}

function queue(g) {
  const h = g.host, p = h.pressure;
  const items = [
    { name: "We use", value: percent(g.cpu.share), share: g.cpu.share },
    { name: "Machine busy", value: percent(h.busy), share: h.busy },
    { name: "Kernel's queue", value: percent(h.wait), share: h.wait, tone: "warn" },
    { name: "Stolen", value: percent(h.steal), share: h.steal, tone: "bad" },
  ];
  if (h.quota > 0) items.push({ name: "Throttled", value: percent(h.throttled), share: h.throttled, tone: "bad" });
  if (p.known) {
    items.push({ name: "Pressure: CPU", value: percent(p.cpu_some), share: p.cpu_some, tone: "warn" },
      { name: "Pressure: memory", value: percent(p.memory_some), share: p.memory_some, tone: "bad" },
      { name: "Pressure: disk", value: percent(p.io_some), share: p.io_some, tone: "warn" });
  }
  bars($("queue"), items);
  text($("queue-note"), h.quota > 0 ? `quota of ${h.quota} CPUs` : `${h.cpus} CPUs`);
}

function canaries(g) {
  const c = g.canaries;
  const items = [["Wake a goroutine", c.goroutine], ["Wake by a socket", c.socket], ["Timer, 5 ms, late", c.timer], ["Wait in netpoll", { p50: c.netpoll_p50, p99: c.netpoll_p99, max: NaN }]];
  list($("canaries").tBodies[0], [...items, ["Lost", null]], ([name]) => name, ([name]) => {
    const row = cells("", "n", "n", "n");
    text(row.cells[0], name);
    return row;
  }, (row, [, q]) => {
    text(row.cells[1], q ? time(q.p50) : "");
    text(row.cells[2], q ? time(q.p99) : "");
    text(row.cells[3], q ? time(q.max) : count(c.lost));
  });
}

function stalls(g) {
  const s = g.stalls;
  bars($("stalls"), [
    { name: "Reader is slow", value: percent(s.reader), share: s.reader, tone: "warn" },
    { name: "Our buffer", value: percent(s.buffer), share: s.buffer, tone: "warn" },
    { name: "Sent again", value: percent(s.retransmits), share: s.retransmits * 10, tone: "bad" },
  ]);
}

const levels = { ok: "water", soft: "warn", hard: "bad" };

function memory(g) {
  const m = g.memory, f = g.files;
  bars($("budgets"), [
    { name: "Memory", value: m.budget.limit ? percent(m.budget.fraction) : bytes(m.rss), share: m.budget.fraction, tone: levels[m.budget.level] ?? "warn" },
    { name: "Descriptors", value: f.budget.limit ? percent(f.budget.fraction) : count(f.open), share: f.budget.fraction, tone: levels[f.budget.level] ?? "warn" },
    { name: "Resident", value: bytes(m.rss), share: m.budget.limit ? m.rss / m.budget.limit : 0 },
  ]);
  const roles = [...(g.goroutines.roles ?? []), { role: "other", n: g.goroutines.other }].filter((r) => r.n > 0);
  const most = Math.max(1, ...roles.map((r) => r.n));
  bars($("roles"), roles.map((r) => ({ name: r.role, value: count(r.n), share: r.n / most })), "None counted.");
}

function admission(classes) {
  const box = $("p-admission");
  if (box.hidden === classes.length > 0) box.hidden = classes.length === 0;
  list($("admission").tBodies[0], classes, (c) => c.class, (c) => {
    const row = cells("", "n", "n", "", "n", "n", "n");
    row.cells[3].append(el("div", { class: "with" }, el("span", { class: "n" }), track()));
    text(row.cells[0], c.class);
    return row;
  }, (row, c) => {
    const r = row.cells;
    text(r[1], rate(c.offered_per_second));
    text(r[2], rate(c.admitted_per_second));
    text(r[3].firstChild.firstChild, rate(c.rejected_per_second));
    fillTrack(r[3].firstChild.lastChild, c.offered_per_second > 0 ? c.rejected_per_second / c.offered_per_second : 0, "bad");
    text(r[4], time(c.delay_p50_seconds));
    text(r[5], time(c.delay_p95_seconds));
    text(r[6], time(c.delay_p99_seconds));
  });
}
