// Starts the page: the feed, what shows it, keys and theme.
import { $, attr, text } from "./dom.js";
import * as format from "./format.js";
import { Feed } from "./feed.js";
import { Canvas, Heat, Series, band, lines, readColours, spark } from "./draw.js";
import { showState } from "./panels/state.js";
import { showConsumers, focusConsumers, startConsumers } from "./panels/consumers.js";
import { showRuntime } from "./panels/runtime.js";
import { showUpstreams } from "./panels/upstreams.js";
import { showChannels, startChannels } from "./panels/channels.js";
import { startTools } from "./panels/tools.js";
import { startObserve } from "./panels/observe.js";
import { startTune } from "./panels/tune.js";
import { showEvidence, startEvidence } from "./panels/evidence.js";

let newest = null; // the snapshot to show
let shown = null;
let held = false;
let mode = "no";

// What index.html binds to numbers of the snapshot.
const bound = [...document.querySelectorAll("[data-v]")].map((e) => {
  const [path, how = "plain"] = e.dataset.v.split("|");
  return { e, path: path.split("."), how: format[how] };
});
// Panels of which nothing can be said yet show their title only. data-filled names the
// numbers or lists of the snapshot of which one must not be empty.
const folding = [...document.querySelectorAll("[data-filled]")].map((e) => ({ e, paths: e.dataset.filled.split(" ").map((p) => p.split(".")) }));
const caused = [...document.querySelectorAll("[data-cause]")].map((e) => ({ e, causes: e.dataset.cause.split(" ") }));

const find = (v, path) => {
  for (const p of path) v = v?.[p];
  return v;
};

const empty = (v) => v === undefined || v === null || v === false || v === 0 || Array.isArray(v) && v.length === 0;

// fold shows or hides what a panel has below its title. One that was filled stays open:
// the page does not jump when numbers come and go.
function fold(e, nothing) {
  if (!nothing) e.dataset.once = "";
  const folded = nothing && !("once" in e.dataset) && !e.contains(document.activeElement);
  if (e.classList.contains("folded") !== folded) {
    e.classList.toggle("folded", folded);
    for (const c of canvases) c.dirty = true;
  }
}

const series = Object.fromEntries(["in", "out", "requests", "bytes", "conns", "p99", "runnable", "running"].map((n) => [n, new Series()]));
const heats = new Map();
const canvases = [];

function prepare() {
  for (const c of document.querySelectorAll("[data-spark]")) {
    const s = series[c.dataset.spark];
    canvases.push(new Canvas(c, (g, w, h) => spark(g, w, h, s)));
  }
  canvases.push(new Canvas(document.querySelector('[data-chart="gpm"]'), (g, w, h) => lines(g, w, h,
    [{ series: series.running, tone: "water" }, { series: series.runnable, tone: "warn" }], [], (v) => format.number(v))));
  for (const c of document.querySelectorAll("[data-heat]")) {
    const name = c.dataset.heat, heat = new Heat(), note = document.querySelector(`[data-heat-note="${name}"]`);
    const canvas = new Canvas(c, (g, w, h) => heat.tops.length && heat.draw(g, w, h, format.time));
    canvases.push(canvas);
    const h = { heat, canvas, note, pointed: false };
    heats.set(name, h);
    c.addEventListener("pointermove", (e) => point(h, e));
    c.addEventListener("pointerleave", () => { h.pointed = false; noteHeat(h); });
  }
  canvases.push(new Canvas(document.querySelector("[data-band]"), (g, w, h) => {
    const gov = shown?.governor;
    if (gov?.enabled) band(g, w, h, gov.timeline ?? [], Date.parse(gov.start), gov.state.now, Date.parse(shown.time));
  }));
}

function point(h, e) {
  const at = h.heat.tops.length ? h.heat.at(e.offsetX, e.offsetY, h.canvas.width, h.canvas.height) : null;
  h.pointed = at !== null;
  if (at) text(h.note, `${format.clock(at.time * 1000)}: ${format.count(at.n)} of ${format.count(at.all)} in ${format.time(at.from)} to ${format.time(at.to)}`);
  else noteHeat(h);
}

function noteHeat(h) {
  if (h.pointed) return;
  const counts = h.heat.columns.get(h.heat.newest);
  const q = (v) => { const i = counts ? h.heat.quantile(counts, v) : NaN; return Number.isNaN(i) ? "–" : format.time(h.heat.tops[i]); };
  const said = `P50 ${q(0.5)}, P99 ${q(0.99)}`;
  text(h.note, said);
  const now = performance.now();
  if (now - (h.told ?? -Infinity) > 10_000) { // not a number a second for who listens
    h.told = now;
    h.label ??= h.canvas.canvas.getAttribute("aria-label");
    attr(h.canvas.canvas, "aria-label", `${h.label}, last second ${said}`);
  }
}

// take keeps what charts need of every snapshot, also while nothing is drawn.
function take(v) {
  const t = Date.parse(v.time) / 1000, gov = v.governor ?? {};
  if (v.interval_seconds > 0) {
    series.in.add(t, v.traffic.published_per_second);
    series.out.add(t, v.traffic.delivered_per_second);
    series.requests.add(t, v.traffic.requests_per_second);
    series.bytes.add(t, v.traffic.bytes_out_per_second);
  }
  series.conns.add(t, v.connections.open);
  if (gov.enabled) {
    const p = Math.max(gov.sched.procs, 1);
    series.p99.add(t, gov.delivery.second.p99);
    series.runnable.add(t, gov.sched.run_queue_max);
    series.running.add(t, gov.sched.running / p);
  }
  for (const m of v.heat_maps ?? []) {
    const h = heats.get(m.name);
    if (h && h.heat.merge(m)) h.canvas.dirty = h.changed = true;
  }
  newest = v;
  if (!held) schedule();
}

let scheduled = false;
function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(frame); // none while the page is hidden
}

function frame() {
  scheduled = false;
  const v = newest;
  if (!v || held) return;
  const fresh = v !== shown, was = shown;
  shown = v;
  if (fresh) {
    for (const b of bound) {
      const value = find(v, b.path);
      text(b.e, value === undefined || value === null ? "–" : b.how(value));
    }
    for (const f of folding) fold(f.e, f.paths.every((p) => empty(find(v, p))));
    level(v.governor?.state?.causes ?? []);
    showState(v);
    showConsumers(v);
    showRuntime(v);
    showUpstreams(v, was);
    showChannels(v);
    showEvidence(v);
    for (const h of heats.values()) if (h.changed) { h.changed = false; noteHeat(h); }
    title(v);
    for (const c of canvases) if (!c.canvas.dataset.heat) c.dirty = true;
  }
  for (const c of canvases) c.paint();
  document.documentElement.dataset.frames = String(++frames); // tells tests that it moves
}
let frames = 0;

// level marks the panels that a cause speaks of, by the thresholds of the server.
function level(causes) {
  for (const c of caused) {
    let worst = null;
    for (const k of causes) {
      if (c.causes.includes(k.name) && worst !== "inflection") worst = k.state;
    }
    attr(c.e, "data-level", worst);
  }
}

function title(v) {
  const s = v.governor?.enabled ? v.governor.state.now : "weir";
  const t = `${s === "steady" ? "" : s === "weir" ? "" : `${s} · `}weir ${v.process.listen}`;
  if (document.title !== t) document.title = t;
}

function onMode(m, old) {
  mode = m;
  const root = document.documentElement;
  const shownMode = held ? "held" : m;
  if (root.dataset.live !== shownMode) root.dataset.live = shownMode;
  text($("pill-text"), held ? "held" : { yes: "live", poll: "asking", no: "not live" }[m]);
  const s = $("stale"), stale = m === "no";
  if (stale) text(s, Number.isFinite(old) ? `Not live: these numbers are ${format.age(old)} old. Trying again.` : "Not live: no numbers yet. Trying again.");
  const late = stale && (Number.isFinite(old) || performance.now() > 5000);
  if (s.hidden === late) s.hidden = !late;
}

function hold() {
  held = !held;
  attr($("pause"), "aria-pressed", String(held));
  onMode(mode, 0);
  if (!held) schedule();
}

// Theme: as the system, dark, light.
const themes = ["auto", "dark", "light"];
const stored = { get: () => { try { return localStorage.getItem("weir-theme"); } catch { return null; } }, set: (v) => { try { localStorage.setItem("weir-theme", v); } catch { /* private mode */ } } };
function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  text($("theme-name"), { auto: "as the system", dark: "dark", light: "light" }[name]);
  recolour();
}
function recolour() {
  readColours();
  for (const c of canvases) c.dirty = true;
  requestAnimationFrame(() => { for (const c of canvases) c.paint(); });
}
function nextTheme() {
  const now = document.documentElement.dataset.theme ?? "auto";
  const name = themes[(themes.indexOf(now) + 1) % themes.length];
  stored.set(name);
  theme(name);
}

const sections = ["now", "consumers", "runtime", "upstreams", "channels", "tools", "evidence"];
function go(id) {
  const e = $(id);
  e.tabIndex = -1;
  e.focus({ preventScroll: true });
  e.scrollIntoView();
}
const keys = {
  "?": () => $("keys").showModal(), t: nextTheme, p: hold, 0: () => go("top"),
  "/": () => $("recent-channel").focus(), s: focusConsumers, m: () => $("trace-form").elements.channel.focus(),
};
sections.forEach((id, i) => { keys[i + 1] = () => go(id); });
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.altKey || e.metaKey || e.isComposing || document.querySelector("dialog[open]")) return;
  if (e.target.closest("input, select, textarea")) {
    if (e.key === "Escape") e.target.blur();
    return;
  }
  const f = keys[e.key];
  if (f) { e.preventDefault(); f(); }
});

$("help").addEventListener("click", () => $("keys").showModal());
$("pause").addEventListener("click", hold);
$("theme").addEventListener("click", nextTheme);
for (const d of document.querySelectorAll("dialog")) d.addEventListener("click", (e) => e.target === d && d.close());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);

prepare();
theme(themes.includes(stored.get()) ? stored.get() : "auto");
startConsumers();
startChannels();
startTools();
startEvidence();
startTune();
startObserve();
// A listener that asks for no token has nothing to log out of.
fetch("/api/info", { credentials: "omit" }).then((r) => { $("logout").hidden = r.status !== 401; }, () => {});
new Feed(take, onMode).start();
