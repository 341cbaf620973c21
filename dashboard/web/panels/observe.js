// The process from the kernel: what is wrong, system calls, and what watching cost.
import { $, attr, cells, el, list, text } from "../dom.js";
import { post, say } from "../api.js";
import { count, percent, time } from "../format.js";

const seconds = 5;

async function observe() {
  const b = $("observe-start"), note = $("observe-note");
  b.disabled = true;
  attr(note, "class", "note");
  text(note, `observing for ${seconds} s …`);
  try {
    show(await post(`/api/observe?seconds=${seconds}`, undefined, { patience: (seconds + 30) * 1000 }));
  } catch (err) {
    attr(note, "class", "note bad");
    text(note, `Not observed: ${say(err)}`);
  } finally {
    b.disabled = false;
    text(b, "Observe again");
  }
}

function show(r) {
  const wait = r.run_queue.count ? `, waiting for a processor P99 ${time(r.run_queue.p99_seconds)}` : "";
  text($("observe-note"), `${r.findings.length ? `${r.findings.length} found` : "nothing found"}; ${percent(r.cpu_seconds / r.seconds)} of a processor, ${count(r.page_faults.minor + r.page_faults.major)} page faults${wait}`);
  list($("observe-findings"), r.findings, (f) => f.name,
    () => el("li", {}, el("span", { class: "badge bad" }), el("span"), el("span", { class: "note" })),
    (row, f) => {
      text(row.children[0], f.name);
      text(row.children[1], f.text);
      text(row.children[2], f.do);
    });
  const calls = [...r.syscalls].sort((a, b) => b.total_seconds - a.total_seconds).slice(0, 30);
  $("observe-scroll").hidden = calls.length === 0;
  list($("observe-calls").tBodies[0], calls, (s) => s.name, (s) => {
    const row = cells("", "n", "n", "n", "n");
    text(row.cells[0], s.name);
    return row;
  }, (row, s) => [count(s.count), time(s.p50_seconds), time(s.p99_seconds), time(s.total_seconds)].forEach((v, i) => text(row.cells[i + 1], v)));
  text($("observe-cost"), r.probes.map((p) => (p.on ? `${p.name} cost ${percent(p.share)} of a processor` : `${p.name} is off: ${p.why}`)).join(" · "));
}

export function startObserve() {
  $("observe-start").addEventListener("click", observe);
}
