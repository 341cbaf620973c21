// Who is behind: how many, who most; a closer look, and the end of a connection.
import { $, attr, cells, confirmed, el, list, look, text, toast } from "../dom.js";
import { ask, post, say } from "../api.js";
import { age, bytes, count, moment, percent, rate, time } from "../format.js";

const short = (how) => (v) => how(v).replace(/\.0+(?=\D|$)/, "").replace(/ ([KMG])iB$/, "$1").replace(" ", "\u2009");
const kinds = [["Waiting here", "bytes", short(bytes)], ["Messages behind", "messages", short((v) => (v < 1000 ? count(v) : rate(v)))], ["Oldest waiting", "seconds", short(time)]];

export function showConsumers(v) {
  for (const [label, key, how] of kinds) hist(label, v.lag[key], how);
  slowest(v);
}

const hists = new Map();
function hist(label, spread, how) {
  let h = hists.get(label);
  if (!h) {
    const box = el("div", { class: "hist", role: "img" });
    $("lag").append(el("h3", {}, label), box);
    hists.set(label, (h = { box, columns: [] }));
    spread.counts.forEach((_, i) => {
      const b = spread.bounds[i];
      const name = i === 0 ? "none" : i < spread.bounds.length ? `≤${how(b)}` : "more";
      const c = { n: el("span"), bar: el("i"), name: el("span", { class: "dim" }, name) };
      h.columns.push(c);
      box.append(el("div", {}, c.n, el("span", { class: "col" }, c.bar), c.name));
    });
  }
  const most = Math.max(1, ...spread.counts);
  spread.counts.forEach((n, i) => {
    const c = h.columns[i];
    text(c.n, count(n));
    // A few among thousands are what one looks for: a logarithm keeps them in sight.
    look(c.bar, "--h", n ? `${(100 * Math.log1p(n) / Math.log1p(most)).toFixed(1)}%` : "0%");
    look(c.bar, "--tone", i === 0 ? "var(--water)" : i < 4 ? "var(--warn)" : "var(--bad)");
  });
  attr(h.box, "aria-label", `${label}: ${h.columns.map((c) => `${c.name.textContent} ${c.n.textContent}`).join(", ")}`);
}

const table = () => $("slow").tBodies[0];
let order = []; // ids while somebody points at the table

function slowest(v) {
  const body = table(), box = body.closest(".scroll");
  const busy = box.matches(":hover") || box.contains(document.activeElement) && document.activeElement !== box;
  let rows = v.slowest ?? [];
  if (busy && order.length) {
    // Nothing moves away under a pointer or a focus: new ones come at the end.
    const now = new Map(rows.map((c) => [c.id, c]));
    const kept = order.map((c) => now.get(c.id) ?? { ...c, away: true });
    rows = [...kept, ...rows.filter((c) => !order.some((k) => k.id === c.id))].slice(0, 20);
    order = rows;
  } else order = rows;
  const lag = v.lag.lagging;
  text($("slow-note"), busy ? "order held" : lag === 0 ? "no client is behind" : `the ${Math.min(20, v.lag.subscribers)} with most`);
  list(body, rows, (c) => c.id, makeRow, fillRow, "No subscribers.");
}

// What a client speaks: a protocol on a transport, which HTTP/2 may carry.
const kind = (c) => [c.protocol, c.transport].filter(Boolean).join(" ") + (c.http2 ? " h2" : "");

function makeRow(c) {
  const row = cells("", "long", "n", "n", "n", "n", "acts");
  const who = `${kind(c)} ${c.peer}`;
  row.cells[6].append(
    el("button", { type: "button", class: "small", "aria-label": `Inspect ${who}`, onclick: () => inspect(c.id) }, "Inspect"),
    el("button", { type: "button", class: "small", "aria-label": `Disconnect ${who}`, onclick: () => disconnect(c.id, who) }, "Disconnect"));
  return row;
}

function fillRow(row, c) {
  const [who, channels, here, messages, kernel, behind] = row.cells;
  text(who, `${kind(c)} ${c.peer}${c.subject ? ` · ${c.subject}` : ""}`);
  text(channels, (c.channels ?? []).slice(0, 4).join(", ") + (c.channels?.length > 4 ? ` and ${c.channels.length - 4} more` : ""));
  text(here, bytes(c.lag_bytes));
  text(messages, count(c.lag_messages));
  text(kernel, bytes(c.kernel_bytes));
  text(behind, c.lag_seconds > 0 ? time(c.lag_seconds) : "–");
  const cls = c.away ? "gone" : c.lag_bytes || c.lag_messages || c.kernel_bytes ? "" : "zero";
  if (row.className !== cls) row.className = cls;
  row.cells[6].lastChild.classList.toggle("danger", c.lag_bytes > 0 || c.lag_messages > 0); // only who is behind
}

export function focusConsumers() {
  $("consumers").scrollIntoView();
  const b = table().querySelector("button");
  if (b) b.focus();
  else $("slow").parentElement.focus();
}

async function disconnect(id, who) {
  if (!(await confirmed(`Disconnect ${who}? It may come back; what it has missed it gets from the log, if there is one.`, "Disconnect"))) return;
  try {
    await post(`/api/connections/${encodeURIComponent(id)}/disconnect`);
    toast(`Disconnected ${who}`);
    if ($("inspect").open) $("inspect").close();
  } catch (err) {
    toast(`Not disconnected: ${say(err)}`);
  }
}

let inspected = "", timer = 0;

function inspect(id) {
  inspected = id;
  const body = $("inspect-body");
  body.replaceChildren(el("p", { class: "dim" }, "asking …"));
  text($("inspect-title"), "Consumer");
  $("inspect-end").disabled = true;
  $("inspect").showModal();
  look1();
}

async function look1() {
  clearTimeout(timer);
  const id = inspected;
  if (!$("inspect").open) return;
  try {
    const c = await ask(`/api/connections/${encodeURIComponent(id)}`);
    if (id === inspected && $("inspect").open) showDetail(c);
  } catch (err) {
    if (id !== inspected) return;
    const gone = err.status === 404;
    $("inspect-end").disabled = true;
    $("inspect-body").replaceChildren(el("p", { class: gone ? "dim" : "bad" }, gone ? "It is gone." : say(err)));
    if (gone) return;
  }
  timer = setTimeout(look1, 1000);
}

function showDetail(c) {
  const who = `${kind(c)} ${c.peer}`;
  text($("inspect-title"), who);
  const end = $("inspect-end");
  end.disabled = false;
  end.onclick = () => disconnect(c.id, who);
  const t = c.tcp;
  const groups = [
    ["", [["Subject", c.subject || "anonymous"], ["Loop", c.loop], ["Connected", `${moment(c.connected_at)} (${age(c.age_seconds)})`], ["Takes nothing now", c.stalled ? "yes, stalled" : "no"]]],
    ["Behind", [["Waiting here", bytes(c.lag_bytes)], ["Messages", count(c.lag_messages)], ["Oldest waits", time(c.lag_seconds)], ["In the kernel", bytes(c.kernel_bytes)]]],
  ];
  const heading = "What the kernel says (TCP_INFO)";
  if (!t) groups.push([heading, [["Nothing", "this kernel does not tell"]]]);
  else {
    const share = (s) => `${time(s)}${t.busy_seconds > 0 ? ` (${percent(s / t.busy_seconds)})` : ""}`;
    groups.push([heading, [
      ["Round trip", time(t.rtt_seconds)], ["Unsent", bytes(t.unsent_bytes)], ["Not acknowledged", `${count(t.unacked_segments)} segments`], ["Sent again", `${count(t.retransmits)} of ${count(t.data_segments_sent)}`],
      ["Had to send for", time(t.busy_seconds)], ["of it the reader was slow", share(t.receive_window_limited_seconds)], ["of it our buffer was small", share(t.send_buffer_limited_seconds)],
    ]]);
  }
  const names = c.channels ?? [];
  const parts = [];
  for (const [title, facts] of groups) {
    if (title) parts.push(el("h3", {}, title));
    parts.push(el("dl", { class: "facts" }, ...facts.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, String(v))))));
  }
  parts.push(el("h3", {}, `Channels (${names.length})`), el("p", { class: "mono" }, names.slice(0, 128).join("  ") || "none"));
  $("inspect-body").replaceChildren(...parts);
}

export function startConsumers() {
  $("inspect").addEventListener("close", () => { inspected = ""; clearTimeout(timer); });
}
