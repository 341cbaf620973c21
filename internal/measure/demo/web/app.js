// The page: it opens the stream, hands each message to the map or to the market,
// and shows what can be counted.

import { Chart, line } from "./draw.js";
import { ShipmentMap } from "./map.js";
import { Market } from "./market.js";
import { Latency, Rate, bucket, clock, edge } from "./stats.js";
import { Continuity, openStream } from "./stream.js";

const $ = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const still = matchMedia("(prefers-reduced-motion: reduce)");
const cutFor = 5000;

const [demo, land] = await Promise.all(["data/demo.json", "data/map.json"].map(async (path) => (await fetch(path)).json()));

const map = new ShipmentMap($("map"), land, demo.airports, still.matches);
const market = new Market(
  { chart: $("index"), price: $("index-price"), date: $("index-date"), change: $("index-change"), shares: $("shares") },
  demo.channels.filter((c) => c.startsWith("market:") && c !== "market:sp500").map((c) => c.slice("market:".length)),
);
const rate = new Rate();
const toScreen = new Latency();
const toPage = new Latency();
const continuity = new Continuity();
const rateChart = new Chart($("rate-chart"));
const latencyChart = new Chart($("latency-chart"));
let undrawn = []; // publication times of messages that no frame has shown yet
let arrived = 0;
let gaps = 0;
let fastest = Infinity; // below 0 the clocks of publisher and page differ

// The connection, as the page tells it.
const link = {
  state: "connecting",
  openedAt: Infinity,
  resumedAt: "",
  timer: 0,
  lastMessage: 0,
  reason: "",
  away: null, // of the latest interruption: since, position, lost, repeated, caughtUp, length
};

const stream = openStream(demo.channels, {
  // An answer may do no more than to say that the server is busy: the line
  // stands with its first message, or after a second.
  open(position) {
    link.openedAt = clock();
    link.resumedAt = position;
    link.timer = setTimeout(stands, 1000);
  },
  message,
  gap(notice) {
    stands();
    gaps++;
    link.reason = `gap in ${notice.namespace}: ${notice.reason}`;
  },
  end(notice) {
    link.reason = notice.reason;
  },
  lost() {
    clearTimeout(link.timer);
    if (link.state === "connected") {
      link.away = { since: clock(), length: 0, position: "", lost: continuity.lost, repeated: continuity.repeated, gaps, caughtUp: 0 };
    }
    link.openedAt = Infinity;
    link.state = "reconnecting";
  },
});

// stands notes that the connection carries messages again.
function stands() {
  clearTimeout(link.timer);
  if (link.state === "connected") return;
  if (link.away) {
    link.away.length = link.openedAt - link.away.since;
    link.away.position = link.resumedAt;
  }
  link.reason = "";
  link.state = "connected";
}

function message(m) {
  const now = clock();
  stands();
  link.lastMessage = now;
  rate.add();
  if (!continuity.check(m)) return;
  const live = m.data.t >= link.openedAt;
  if (live) {
    fastest = Math.min(fastest, now - m.data.t);
    toPage.add(now - m.data.t, now);
    if (!document.hidden) undrawn.push(m.data.t);
  } else if (link.away) {
    link.away.caughtUp++;
  }
  if (m.data.symbol) return market.tick(m.data);
  map.move(m.data, now);
  if (m.data.status === "arrived") {
    arrived++;
    tellArrival(m.data);
  }
}

function tellArrival({ id, from, to }) {
  const list = $("arrivals");
  list.querySelector(".none")?.remove();
  const item = document.createElement("li");
  const name = document.createElement("span");
  name.textContent = id;
  item.append(name, ` ${demo.airports[from][2]} → ${demo.airports[to][2]}`);
  list.prepend(item);
  while (list.children.length > 4) list.lastChild.remove();
}

// frame runs before each repaint: what is drawn now is on the screen with it.
function frame() {
  const now = clock();
  map.draw(now);
  market.draw();
  for (const t of undrawn) toScreen.add(now - t, now);
  undrawn = [];
  if (still.matches) setTimeout(() => requestAnimationFrame(frame), 500);
  else requestAnimationFrame(frame);
}

let turned = clock();
function everySecond() {
  const now = clock();
  rate.turn(now - turned);
  turned = now;
  map.forget(link.state === "connected" && now - link.lastMessage < 2000 && now - link.openedAt > 10_000 ? now : 0);
  $("rate").textContent = whole.format(rate.now());
  rateChart.draw((g, width, height, colours) => {
    line(g, width, height, rate.history, { room: 60, colour: colours.water, wash: colours.wash, floor: 0, dot: colours.bright, newest: true });
  });
  showLatency(now);
}

function showLatency(now) {
  const screen = toScreen.window(now);
  const page = toPage.window(now);
  const ms = (v) => (v < 9.95 ? v.toFixed(1) : whole.format(v));
  $("p50").textContent = screen ? ms(screen.p50) : "–";
  $("p99").textContent = screen ? ms(screen.p99) : "–";
  $("arrive50").textContent = page ? ms(page.p50) : "–";
  $("arrive99").textContent = page ? ms(page.p99) : "–";
  if (fastest < -1) $("latency-foot").textContent = "The clocks of publisher and page differ: not to be trusted.";
  latencyChart.draw((g, width, height, colours) => drawHistogram(g, width, height, colours, screen));
  if (screen) latencyChart.label(`Histogram of the last ten seconds: half within ${ms(screen.p50)} ms, 99 of 100 within ${ms(screen.p99)} ms`);
}

// drawHistogram has a logarithmic axis from 0.1 ms to 10 s.
function drawHistogram(g, width, height, colours, window) {
  const last = bucket(10_000);
  const base = height - 14;
  const x = (i) => (width * i) / last;
  g.font = `10px ${colours.font}`;
  g.fillStyle = colours.soft;
  g.strokeStyle = colours.line;
  g.textBaseline = "bottom";
  g.lineWidth = 1;
  for (const [ms, text] of [[1, "1"], [10, "10"], [100, "100"], [1000, "1 s"]]) {
    g.beginPath();
    g.moveTo(x(bucket(ms)), 0);
    g.lineTo(x(bucket(ms)), base);
    g.stroke();
    g.textAlign = "center";
    g.fillText(text, x(bucket(ms)), height);
  }
  if (!window) return;
  const top = Math.max(...window.counts);
  window.counts.forEach((n, i) => {
    if (n === 0) return;
    g.fillStyle = edge(i) >= window.p99 ? colours.amber : colours.water;
    const h = Math.max(1.5, ((base - 2) * n) / top);
    g.fillRect(x(i), base - h, Math.max(1, width / last - 0.6), h);
  });
}

// tell says in words how the connection is, and what the latest interruption cost.
function tell() {
  const now = clock();
  const s = (ms) => (ms < 10_000 ? (ms / 1000).toFixed(1) : whole.format(ms / 1000)) + " s";
  const silent = link.state === "connected" && link.lastMessage > 0 && now - Math.max(link.lastMessage, link.openedAt) > 3000;
  const state = silent ? "silent" : link.state;
  const text = { connecting: "connecting", connected: "connected", silent: "connected, nothing is published", reconnecting: "reconnecting" }[state];
  const pill = $("pill");
  if (pill.dataset.state !== state) {
    pill.dataset.state = state;
    $("pill-text").textContent = text;
  }
  const away = link.away;
  if (state === "reconnecting") {
    $("story").textContent = `Away for ${s(now - away?.since || 0)}${link.reason ? ` (${link.reason})` : ""}. It will go on from the message it saw last.`;
  } else if (away && away.length > 0) {
    const lost = continuity.lost - away.lost;
    const again = continuity.repeated - away.repeated;
    const clean = lost === 0 && again === 0 && gaps === away.gaps;
    $("story").textContent = `Resumed after ${s(away.length)}${clean ? " without a gap" : ""}: ${whole.format(away.caughtUp)} caught up, ${lost} lost, ${again} repeated.`;
  } else if (link.lastMessage > 0) {
    $("story").textContent = "One stream, up since the page was opened.";
  }
  $("total").textContent = whole.format(rate.total);
  $("under-way").textContent = whole.format(map.size);
  $("arrived").textContent = whole.format(arrived);
  $("lost").textContent = whole.format(continuity.lost);
  $("repeated").textContent = whole.format(continuity.repeated);
  $("disordered").textContent = whole.format(continuity.disordered);
  $("gaps").textContent = whole.format(gaps);
  $("continuity").dataset.clean = continuity.lost + continuity.repeated + continuity.disordered === 0;
  const justBack = state === "connected" && away?.position && now - link.openedAt < 10_000;
  $("position-is").textContent = justBack ? "resumed from" : "at";
  $("position").textContent = (justBack ? away.position : stream.position()) || "–";
}

function showCommands() {
  for (const { title, line: text } of demo.commands) {
    const item = document.createElement("li");
    const label = document.createElement("h3");
    label.textContent = title;
    const code = document.createElement("code");
    code.textContent = text.replaceAll("{origin}", location.origin);
    const scroll = document.createElement("pre");
    scroll.tabIndex = 0;
    scroll.append(code);
    const copy = document.createElement("button");
    copy.type = "button";
    copy.textContent = "Copy";
    copy.setAttribute("aria-label", "Copy: " + title);
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code); // without leave for the clipboard: ready for Ctrl-C
        copy.textContent = "Selected";
      }
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    });
    item.append(label, scroll, copy);
    $("commands").append(item);
  }
}

function resize() {
  map.resize();
  market.resize();
  rateChart.resize();
  latencyChart.resize();
}

$("cut").addEventListener("click", () => {
  link.reason = "cut by you";
  stream.cut(cutFor);
  $("cut").disabled = true;
  setTimeout(() => ($("cut").disabled = false), cutFor);
});
$("channels").textContent = demo.channels.length;
showCommands();
resize();
new ResizeObserver(resize).observe(document.querySelector("main"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", resize);
setInterval(everySecond, 1000);
setInterval(tell, 250);
requestAnimationFrame(frame);
