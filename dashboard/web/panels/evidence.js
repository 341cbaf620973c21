// What happened: changes of state, and what was recorded of them.
import { $, attr, el, list, text, toast } from "../dom.js";
import { post, say } from "../api.js";
import { bytes, moment } from "../format.js";
import { chips } from "./state.js";

const most = 40;
let capturing = false;

export function showEvidence(v) {
  const g = v.governor;
  const have = new Set((g?.evidence?.bundles ?? []).map((b) => b.id));
  const changes = [...(g?.timeline ?? [])].sort((a, b) => Date.parse(b.time) - Date.parse(a.time)).slice(0, most);
  list($("timeline"), changes, (t) => t.time, (t) => {
    const row = el("li", {}, el("time", {}, moment(t.time)), el("span", { class: "badge" }, t.to), el("ul", { class: "chips" }), el("a", { class: "button small", download: true }, "Evidence"));
    attr(row.children[1], "class", `badge ${{ steady: "good", alert: "warn", inflection: "bad" }[t.to] ?? ""}`);
    chips(row.children[2], t.causes ?? []);
    return row;
  }, (row, t) => {
    const link = row.children[3], there = t.evidence && have.has(t.evidence);
    if (link.hidden === Boolean(there)) link.hidden = !there;
    if (there) attr(link, "href", `/api/bundles/${encodeURIComponent(t.evidence)}`);
  }, g?.enabled ? "Steady since the start." : "The governor is off: nothing is judged.");
  bundles(g?.evidence);
}

function bundles(e) {
  list($("bundles"), e?.bundles ?? [], (b) => b.id, (b) => el("li", {},
    el("div", {}, el("span", {}, moment(b.time)), el("p", {}, b.reason)),
    el("a", { class: "button small", href: `/api/bundles/${encodeURIComponent(b.id)}`, download: true, "aria-label": `Download the bundle of ${moment(b.time)}` }, bytes(b.bytes))), () => {}, "None yet: one is written at an inflection, or now if you ask.");
  const note = $("bundle-note");
  text(note, capturing || e?.writing ? "a bundle is being written …" : e?.problem ? e.problem : e?.armed ? "the flight recorder runs" : "");
  attr(note, "class", !capturing && e?.problem ? "note bad" : "note");
}

export function startEvidence() {
  const b = $("capture");
  b.addEventListener("click", async () => {
    b.disabled = capturing = true;
    text(b, "Capturing …");
    try {
      const made = await post("/api/bundles?reason=asked%20for%20on%20the%20page", undefined, { patience: 60_000 });
      toast(`Captured ${bytes(made.bytes)}`);
    } catch (err) {
      toast(`No bundle: ${say(err)}`);
    } finally {
      capturing = b.disabled = false;
      text(b, "Capture now");
    }
  });
}
