// Backends: how each fares, and the canaries of releases.
import { $, attr, cells, confirmed, el, fillTrack, list, text, toast, track } from "../dom.js";
import { post, say } from "../api.js";
import { count, percent, rate, time } from "../format.js";

const tones = { up: "good", "slow start": "warn", "half-open": "warn", draining: "warn", open: "bad", ejected: "bad", down: "bad" };

const failures = (p) => (p.classes?.[5] ?? 0) + p.connect_errors + p.resets + p.timeouts;

export function showUpstreams(v, was) {
  const u = v.upstreams ?? {}, seconds = was ? (Date.parse(v.time) - Date.parse(was.time)) / 1000 : 0;
  const before = new Map();
  for (const c of was?.upstreams?.clusters ?? []) for (const p of c.peers ?? []) before.set(`${c.name} ${p.address}`, p);
  const peers = [];
  for (const c of u.clusters ?? []) {
    for (const p of c.peers ?? []) peers.push({ key: `${c.name} ${p.address}`, cluster: c.name, ...p });
  }
  const bad = peers.filter((p) => tones[p.state] === "bad").length;
  text($("peers-note"), peers.length ? `${peers.length - bad} of ${peers.length} peers usable` : "");
  list($("peers").tBodies[0], peers.slice(0, 200), (p) => p.key, (p) => {
    const row = cells("", "", "", "n", "n", "n", "n");
    row.cells[1].append(el("span", { class: "badge" }));
    text(row.cells[0], `${p.cluster} · ${p.name && p.name !== p.address ? `${p.name} ` : ""}${p.address}`);
    return row;
  }, (row, p) => {
    const c = row.cells, then = before.get(p.key);
    const per = (a, b) => (then && seconds > 0 && a >= b ? (a - b) / seconds : NaN);
    text(c[1].firstChild, p.state);
    attr(c[1].firstChild, "class", `badge ${tones[p.state] ?? ""}`);
    attr(c[1].firstChild, "title", p.health ? `checks: ${p.health}, ${p.checks_failed} of ${p.checks} failed` : null);
    text(c[2], p.breaker || "–");
    text(c[3], count(p.in_flight));
    // A rate over half a second jumps: each is smoothed over some of them.
    row.rates ??= [NaN, NaN];
    [per(p.attempts, then?.attempts), per(failures(p), then ? failures(then) : 0)].forEach((n, i) => {
      if (Number.isFinite(n)) row.rates[i] = Number.isFinite(row.rates[i]) ? row.rates[i] * 0.7 + n * 0.3 : n;
      if (row.rates[i] < 0.005) row.rates[i] = 0;
    });
    text(c[4], rate(row.rates[0]));
    text(c[5], rate(row.rates[1]));
    attr(c[5], "class", row.rates[1] > 0 ? "n bad" : "n");
    text(c[6], p.ewma > 0 ? time(p.ewma / 1e9) : "–");
  }, "No clusters: nothing is proxied.");
  splits(u);
}

const canaryTones = { running: "warn", done: "good", promoted: "good", "rolled back": "bad", "rolled-back": "bad" };

function splits(u) {
  list($("splits"), [...(u.splits ?? []).map((s) => ({ ...s, kind: "split" })), ...(u.drift ?? []).map((d) => ({ ...d, kind: "drift" }))], (s) => `${s.kind} ${s.name}`, (s) => {
    const box = el("div", { class: "split" }, el("header", {}, el("b", {}, s.name), el("span", { class: "badge" })), el("ul", { class: "bars" }), el("p"));
    if (s.kind === "split" && s.canary) {
      const act = (action, question, yes) => async () => {
        if (!(await confirmed(question, yes))) return;
        try {
          await post(`/api/canary/${encodeURIComponent(s.name)}/${action}`);
          toast(`${s.name}: ${action === "restart" ? "begun anew" : "rolled back"}`);
        } catch (err) {
          toast(`${s.name}: ${say(err)}`);
        }
      };
      box.append(el("div", { class: "acts" },
        el("button", { type: "button", class: "small danger", "aria-label": `Roll ${s.name} back`, onclick: act("roll-back", `Roll ${s.name} back? Its canary gets nothing more.`, "Roll back") }, "Roll back"),
        el("button", { type: "button", class: "small", "aria-label": `Restart ${s.name}`, onclick: act("restart", `Begin the canary of ${s.name} anew, from its first step?`, "Restart") }, "Restart")));
    }
    return box;
  }, (box, s) => {
    const badge = box.firstChild.lastChild, p = box.children[2];
    if (s.kind === "drift") {
      text(badge, s.alarm ? "drift" : "as ever");
      attr(badge, "class", `badge ${s.alarm ? "bad" : "good"}`);
      text(p, `${count(s.requests)} requests looked at, ${s.alarms} alarms; distance of sizes ${s.size_distance.toFixed(2)}, of times ${s.latency_distance.toFixed(2)}`);
      return;
    }
    const c = s.canary;
    text(badge, c ? c.state : "split");
    attr(badge, "class", `badge ${c ? (canaryTones[c.state] ?? "warn") : ""}`);
    list(box.children[1], s.arms ?? [], (a) => a.cluster, (a) => el("li", {}, el("span", { title: a.cluster }, a.cluster), track(), el("span")), (row, a) => {
      fillTrack(row.children[1], a.share, "water");
      text(row.children[2], percent(a.share));
    });
    text(p, c ? `step ${c.step + 1}, ${count(c.looks)} looks, ${count(c.canary.requests)} requests of the canary against ${count(c.baseline.requests)}${c.canary.requests ? `; ${time(c.canary.latency / 1e9)} against ${time(c.baseline.latency / 1e9)}` : ""}${c.reason ? `: ${c.reason}` : ""}` : "");
  }, "No releases under way.");
}
