// Channels by rate, and what one has said lately.
import { $, cells, el, list, text } from "../dom.js";
import { ask, say } from "../api.js";
import { clock, count, rate } from "../format.js";

const body = () => $("channel-table").tBodies[0];
let sort = "rate", asked = 0;

export function showChannels(v) {
  if (sort === "rate") fill(v.channels.top ?? []);
  else if (performance.now() - asked > 3000) fetchSorted();
  refresh();
}

async function fetchSorted() {
  asked = performance.now();
  const by = sort;
  try {
    const c = await ask(`/api/channels?sort=${by}&limit=20`);
    if (by === sort) fill(c.channels ?? []);
  } catch { /* the next will tell */ }
}

function fill(channels) {
  list(body(), channels, (c) => c.name, (c) => {
    const row = cells("long", "n", "n", "n");
    row.cells[0].append(el("button", { type: "button", class: "link", title: c.name, "aria-label": `Recent messages of ${c.name}`, onclick: () => show(c.name) }, c.name));
    return row;
  }, (row, c) => {
    text(row.cells[1], rate(c.messages_per_second));
    text(row.cells[2], count(c.subscribers));
    text(row.cells[3], count(c.messages));
  }, "No channel has subscribers.");
}

let channel = "", fetched = 0, fetching = false;

export function show(name) {
  channel = name;
  $("recent-channel").value = name;
  $("recent").weirRows?.clear();
  $("recent").replaceChildren();
  fetched = 0;
  refresh();
}

// refresh asks again while a channel is chosen and its panel can be seen.
let visible = true;
async function refresh() {
  if (!channel || fetching || !visible || performance.now() - fetched < 2000 || document.hidden) return;
  fetching = true;
  const name = channel;
  try {
    const m = await ask(`/api/channels/${encodeURIComponent(name)}/messages?limit=20`);
    if (name === channel) recent(m.messages ?? [], name);
  } catch (err) {
    if (name === channel) {
      recent([], name, say(err));
      channel = "";
    }
  } finally {
    fetching = false;
    fetched = performance.now();
  }
}

function recent(messages, name, problem) {
  list($("recent"), [...messages].reverse(), (m) => m.id || `${m.time} ${JSON.stringify(m.data)}`,
    (m) => messageRow({ time: m.time, id: m.id, key: m.key, data: m.payload === "json" ? m.data : m.data, raw: m.payload !== "json", more: m.truncated ? ` … ${count(m.size_bytes)} bytes in all` : "" }),
    () => {}, problem ?? `Nothing is kept of ${name}.`);
}

// messageRow shows a message; its data is text, whatever it looks like.
export function messageRow({ time, id, key, channel: from, data, raw, more = "", event }) {
  const shown = raw && typeof data === "string" ? data : JSON.stringify(data);
  return el("li", {},
    el("time", {}, clock(time)),
    el("div", { class: "what" }, el("pre", { class: event ? "event" : undefined },
      from ? el("span", { class: "ch" }, from) : null, key ? el("span", { class: "dim" }, `[${key}] `) : null, (shown ?? "").slice(0, 4000) + more)),
    el("span", { class: "id" }, id ? id.slice(id.indexOf("-")) .slice(1) : ""));
}

export function startChannels() {
  $("channel-sort").addEventListener("change", (e) => {
    sort = e.target.value;
    asked = 0;
    fetchSorted();
  });
  $("recent-form").addEventListener("submit", (e) => { e.preventDefault(); show($("recent-channel").value.trim()); });
  list($("recent"), [], () => "", () => null, () => {}, "Choose a channel, or write its name.");
  new IntersectionObserver(([e]) => { visible = e.isIntersecting; }).observe($("recent"));
}
