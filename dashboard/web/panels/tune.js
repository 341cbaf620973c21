// The machine: kernel settings, card and limits that a profile would change.
import { $, attr, cells, el, list, text } from "../dom.js";
import { ask, say } from "../api.js";

const tones = { ok: "good", change: "warn", obsolete: "warn", watch: "bad", forbidden: "bad" };
const quiet = new Set(["ok", "absent", "unsupported"]);
const names = { change: "to change", watch: "to look at", obsolete: "obsolete", forbidden: "not readable", ok: "ok", absent: "not in this kernel", unsupported: "not supported here" };

async function check() {
  const b = $("tune-check"), note = $("tune-note");
  b.disabled = true;
  try {
    const r = await ask(`/api/tune?profile=${encodeURIComponent($("tune-profile").value)}`);
    attr(note, "class", "note");
    text(note, Object.keys(names).filter((s) => r.counts[s]).map((s) => `${r.counts[s]} ${names[s]}`).join(", "));
    show(r.findings);
  } catch (err) {
    attr(note, "class", "note bad");
    text(note, `Not checked: ${say(err)}`);
  } finally {
    b.disabled = false;
    text(b, "Check again");
  }
}

function show(findings) {
  $("tune-scroll").hidden = false;
  list($("tune").tBodies[0], findings.filter((f) => !quiet.has(f.state)), (f) => f.knob, () => {
    const row = cells("", "", "", "", "wrap", "wrap");
    row.cells[1].append(el("span", { class: "badge" }));
    return row;
  }, (row, f) => {
    const c = row.cells;
    text(c[0], f.knob);
    attr(c[0], "title", `${f.source} (since ${f.since})`);
    text(c[1].firstChild, f.state);
    attr(c[1].firstChild, "class", `badge ${tones[f.state] ?? ""}`);
    text(c[2], f.now || "–");
    text(c[3], f.want || "–");
    text(c[4], f.why);
    attr(c[4], "title", `Risk: ${f.risk}`);
    text(c[5], f.page ? `${f.worth} (${f.page})` : f.worth);
  }, "Nothing to change: weir tune check --all lists every setting.");
}

export function startTune() {
  $("tune-check").addEventListener("click", check);
  $("tune-profile").addEventListener("change", check);
}
