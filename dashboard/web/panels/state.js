// How it fares, and why; how far the knee is.
import { $, attr, el, list, look, text } from "../dom.js";
import { age, moment, number, percent, rate } from "../format.js";

const words = { steady: "Steady", alert: "Alert", inflection: "Inflection" };

const chipText = (c) => (c.loop >= 0 && !/loop/i.test(c.text) ? `loop ${c.loop}: ${c.text}` : c.text) + (c.more ? ` +${c.more} more` : "");

// merged has each cause once: of the same on several loops the worst, and how many more.
function merged(causes) {
  const by = new Map();
  for (const c of causes) {
    const was = by.get(c.name);
    if (!was) by.set(c.name, { ...c, more: 0 });
    else by.set(c.name, { ...(c.value > was.value ? c : was), more: was.more + 1 });
  }
  return [...by.values()];
}

export const chips = (parent, causes, none) => list(parent, merged(causes), (c) => c.name,
  () => el("li", { class: "chip" }),
  (row, c) => { text(row, chipText(c)); attr(row, "data-state", c.state); attr(row, "title", c.detail || null); }, none);

// degraded are the modes in which the node serves only a part, as causes are shown.
const degraded = (v) => (v.degraded ?? []).map((d) => ({
  name: d.mode, state: "inflection", loop: -1, value: 0, detail: `${d.reason} (runbook ${d.alert})`,
  text: `degraded: ${d.mode} for ${age((Date.parse(v.time) - Date.parse(d.since)) / 1000)}`,
}));

// draining shows how clients leave, beside the plan.
const draining = (v) => (v.drain ? [{
  name: "drain", state: v.drain.left > v.drain.planned ? "alert" : "steady", loop: -1, value: 0, detail: `${v.drain.streams} streams over ${v.drain.over_seconds.toFixed(1)} s`,
  text: `draining: ${number(v.drain.left)} streams left, ${number(v.drain.planned)} planned`,
}] : []);

export function showState(v) {
  const g = v.governor, box = $("state");
  if (!g?.enabled) {
    attr(box, "data-state", "unknown");
    text($("state-now"), v.process.ready === "yes" ? "Running" : "Not ready");
    text($("state-since"), v.process.ready === "yes" ? "the governor is off" : v.process.ready);
    chips($("causes"), [...draining(v), ...degraded(v)], "");
  } else {
    const s = g.state;
    attr(box, "data-state", s.now);
    text($("state-now"), words[s.now] ?? s.now);
    const since = (Date.parse(v.time) - Date.parse(s.since)) / 1000;
    text($("state-since"), (s.since ? `for ${age(since)}` : "no window judged yet") + (s.inconclusive ? " · inconclusive: host busy" : "") + (v.process.ready === "yes" ? "" : ` · not ready: ${v.process.ready}`));
    chips($("causes"), [...draining(v), ...degraded(v), ...(s.causes ?? [])], s.now === "steady" ? "nothing speaks against it" : "no cause holds any longer");
    const none = $("causes").weirEmpty;
    if (none) none.className = "chip none";
  }
  showKnee(g);
}

// used is how much of the processors is taken: what we use, what others
// on the machine use, what the hypervisor takes and what a quota keeps back.
function used(g) {
  const own = g?.cpu?.share ?? 0, h = g?.host ?? {};
  const all = Math.min(1, Math.max(own, h.busy ?? 0, own + (h.steal ?? 0), own + (h.throttled ?? 0)));
  return { own, all, others: Math.max(0, all - own) };
}

// estimate is what there is without a report: how full the processors are.
function estimate(g, meter) {
  const { own, all, others } = used(g), p = g?.knee?.projected ?? 0;
  text($("knee-label"), "Processors left, no capacity report");
  text($("knee-big"), g?.enabled ? `${percent(1 - all)}` : "–");
  look(meter.firstElementChild, "--w", `${(all * 100).toFixed(1)}%`);
  look(meter.firstElementChild, "--tone", others > own && all > 0.8 ? "var(--warn)" : "var(--water)");
  attr(meter, "aria-label", `Processors in use: ${percent(all)}, ${percent(own)} by this process`);
  const whose = g?.enabled ? `This process uses ${percent(own)}, others ${percent(others)}. ` : "";
  text($("knee-text"), `${whose}${p > 0 && others <= own ? `By what a delivery costs now they are full at ${rate(p)}/s. ` : ""}For the knee: weir knee --json, admin.capacity_report`);
}

function showKnee(g) {
  const k = g?.knee, meter = $("knee-meter");
  if (!k?.known) {
    estimate(g, meter);
    return;
  }
  text($("knee-label"), "Distance to the knee");
  const used = k.fraction, tone = used >= 1 ? "bad" : used >= 0.8 ? "warn" : "good";
  text($("knee-big"), `${percent(k.headroom)} left`);
  look(meter.firstElementChild, "--w", `${Math.min(100, used * 100).toFixed(1)}%`);
  look(meter.firstElementChild, "--tone", `var(--${tone})`);
  attr(meter, "aria-label", `Load is ${percent(used)} of the knee`);
  const r = k.report, unit = r.connections > 0 ? " connections" : " deliveries/s";
  const knee = r.connections > 0 ? r.connections : r.knee || r.capacity;
  text($("knee-text"), `${rate(k.load)} of ${rate(knee)}${unit}; report of ${moment(r.time)}${r.confidence ? `, ${r.confidence}` : ""}${k.projected > 0 ? `; processors full at ${number(k.projected)}/s` : ""}`);
}
