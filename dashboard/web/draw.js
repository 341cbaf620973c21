// Charts on canvas. A chart is drawn when its numbers have changed and it can be seen.

const names = ["ground", "panel", "raise", "line", "edge", "ink", "soft", "water", "wash", "good", "warn", "bad", "heat0", "heat1", "heat2", "heat3"];
export const colours = {};
let ramp = [];

// parts reads "rgb(1, 2, 3)" or "color(srgb .1 .2 .3)".
function parts(c) {
  const n = c.match(/[\d.]+/g).map(Number);
  return c.startsWith("color(") ? n.slice(0, 3).map((v) => v * 255) : n.slice(0, 3);
}

// readColours takes the colours of the theme that holds now.
export function readColours() {
  const probe = document.createElement("i");
  document.body.append(probe);
  for (const n of names) {
    probe.style.color = `var(--${n})`;
    colours[n] = getComputedStyle(probe).color;
  }
  probe.remove();
  const stops = [0, 1, 2, 3].map((i) => parts(colours[`heat${i}`]));
  ramp = Array.from({ length: 64 }, (_, i) => {
    const at = (i / 63) * 3, k = Math.min(Math.floor(at), 2), f = at - k;
    return `rgb(${stops[k].map((v, j) => Math.round(v + (stops[k + 1][j] - v) * f)).join(" ")})`;
  });
}

// A Canvas knows its size in CSS pixels and draws when it has one.
export class Canvas {
  constructor(canvas, draw) {
    this.canvas = canvas;
    this.draw = draw;
    this.dirty = true;
    this.seen = true;
    this.width = this.height = 0;
    new ResizeObserver(([e]) => this.size(e.contentRect.width, e.contentRect.height)).observe(canvas);
    new IntersectionObserver(([e]) => {
      this.seen = e.isIntersecting;
      requestAnimationFrame(() => this.paint());
    }, { rootMargin: "400px" }).observe(canvas);
  }

  size(w, h) {
    this.width = Math.round(w);
    this.height = Math.round(h);
    const dpr = Math.min(devicePixelRatio || 1, 3);
    this.canvas.width = Math.max(1, Math.round(w * dpr));
    this.canvas.height = Math.max(1, Math.round(h * dpr));
    this.scale = dpr;
    this.dirty = true;
    this.paint();
  }

  paint() {
    if (!this.dirty || !this.seen || this.width < 8 || this.height < 8) return;
    this.dirty = false;
    const g = this.canvas.getContext("2d");
    g.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    g.clearRect(0, 0, this.width, this.height);
    g.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    this.draw(g, this.width, this.height);
  }
}

export const span = 120; // seconds that charts show

// nice is the next 1, 2 or 5 times a power of ten.
function nice(v) {
  if (!(v > 0)) return 1;
  const p = 10 ** Math.floor(Math.log10(v)), m = v / p;
  return (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10) * p;
}

// A Series is the last two minutes of a number.
export class Series {
  constructor() { this.at = []; this.v = []; }
  add(t, v) {
    const n = this.at.length;
    if (!Number.isFinite(v) || (n && t <= this.at[n - 1])) return;
    this.at.push(t);
    this.v.push(v);
    while (this.at.length && this.at[0] < t - span - 3) { this.at.shift(); this.v.shift(); }
  }
}

function path(g, s, x, y) {
  let pen = false;
  for (let i = 0; i < s.v.length; i++) {
    if (i && s.at[i] - s.at[i - 1] > 4) pen = false; // nobody knows what was between
    if (pen) g.lineTo(x(s.at[i]), y(s.v[i]));
    else g.moveTo(x(s.at[i]), y(s.v[i]));
    pen = true;
  }
}

function area(g, s, x, y, base) {
  for (let i = 0; i < s.v.length;) {
    let j = i;
    while (j + 1 < s.v.length && s.at[j + 1] - s.at[j] <= 4) j++;
    g.beginPath();
    g.moveTo(x(s.at[i]), base);
    for (let k = i; k <= j; k++) g.lineTo(x(s.at[k]), y(s.v[k]));
    g.lineTo(x(s.at[j]), base);
    g.fill();
    i = j + 1;
  }
}

// spark draws one series, small.
export function spark(g, w, h, s) {
  const end = s.at.at(-1) ?? 0, top = nice(Math.max(...s.v, 0)) || 1;
  const x = (t) => w - 2 - ((end - t) / span) * (w - 2), y = (v) => h - 1.5 - (v / top) * (h - 4);
  g.strokeStyle = colours.line;
  g.lineWidth = 1;
  g.beginPath(); g.moveTo(0, h - 0.5); g.lineTo(w, h - 0.5); g.stroke();
  if (!s.v.length) return;
  g.fillStyle = colours.wash;
  area(g, s, x, y, h - 1);
  g.strokeStyle = colours.water;
  g.lineWidth = 1.5;
  g.lineJoin = "round";
  g.beginPath(); path(g, s, x, y); g.stroke();
  g.fillStyle = colours.water;
  g.beginPath(); g.arc(x(end), y(s.v.at(-1)), 2, 0, 7); g.fill();
}

// lines draws several on one scale, with marks at levels that mean something.
export function lines(g, w, h, all, marks, label) {
  const left = 36, end = Math.max(...all.map((l) => l.series.at.at(-1) ?? 0));
  const top = nice(Math.max(...all.flatMap((l) => l.series.v), 1));
  const x = (t) => w - 3 - ((end - t) / span) * (w - left - 3), y = (v) => h - 18 - (v / top) * (h - 26);
  g.textBaseline = "middle";
  g.lineWidth = 1;
  for (const v of [0, top / 2, top]) {
    g.strokeStyle = colours.line;
    g.beginPath(); g.moveTo(left, Math.round(y(v)) + 0.5); g.lineTo(w, Math.round(y(v)) + 0.5); g.stroke();
    g.fillStyle = colours.soft;
    g.textAlign = "right";
    g.fillText(label(v), left - 8, y(v));
  }
  seconds(g, left, w, h);
  g.setLineDash([4, 4]);
  for (const m of marks) {
    if (m.at > top) continue;
    g.strokeStyle = colours[m.tone];
    g.beginPath(); g.moveTo(left, Math.round(y(m.at)) + 0.5); g.lineTo(w, Math.round(y(m.at)) + 0.5); g.stroke();
  }
  g.setLineDash([]);
  g.save();
  g.beginPath(); g.rect(left, 0, w - left, h); g.clip();
  for (const l of all) {
    g.strokeStyle = colours[l.tone];
    g.lineWidth = 1.75;
    g.lineJoin = "round";
    g.beginPath(); path(g, l.series, x, y); g.stroke();
  }
  g.restore();
}

// seconds writes the time axis: two minutes, now at the right.
function seconds(g, left, w, h) {
  g.fillStyle = colours.soft;
  g.textBaseline = "alphabetic";
  for (const [at, label, align] of [[0, "2 min ago", "left"], [0.5, "1 min", "center"], [1, "now", "right"]]) {
    g.textAlign = align;
    g.fillText(label, left + at * (w - left), h - 3);
  }
}

// A Heat is one heat map: columns of a second, rows of durations.
export class Heat {
  constructor() { this.tops = []; this.columns = new Map(); this.lo = 0; this.hi = 0; }

  // merge takes the columns of a snapshot and says whether anything is new.
  merge(map) {
    let changed = this.tops.length !== map.tops.length;
    this.tops = map.tops;
    for (const c of map.columns) {
      const was = this.columns.get(c.time);
      if (!was || total(was) !== total(c.counts)) { this.columns.set(c.time, c.counts); changed = true; }
    }
    const newest = Math.max(0, ...this.columns.keys());
    for (const t of this.columns.keys()) if (t <= newest - span || t > newest) this.columns.delete(t);
    this.newest = newest;
    if (changed) this.range();
    return changed;
  }

  // range is what rows are shown: all with something, at least 16 µs to 16 ms.
  range() {
    let lo = this.tops.findIndex((t) => t >= 16e-6), hi = this.tops.findIndex((t) => t >= 16e-3);
    for (const counts of this.columns.values()) {
      for (let i = 0; i < counts.length; i++) {
        if (counts[i]) { lo = Math.min(lo, i); hi = Math.max(hi, i); }
      }
    }
    this.lo = Math.max(lo, 0);
    this.hi = Math.max(hi, this.lo + 1);
  }

  quantile(counts, q) {
    const n = total(counts);
    if (!n) return NaN;
    let rank = Math.max(Math.ceil(q * n), 1);
    for (let i = 0; i < counts.length; i++) {
      if (rank <= counts[i]) return i;
      rank -= counts[i];
    }
    return counts.length - 1;
  }

  frame(w, h) {
    const left = 52, rows = this.hi - this.lo + 1, step = (w - left) / span, row = (h - 22) / rows;
    return { left, rows, step, row, x: (t) => w - (this.newest - t + 1) * step, y: (i) => (this.hi - i) * row + 2 };
  }

  // at says what is under a point.
  at(px, py, w, h) {
    const f = this.frame(w, h);
    const t = this.newest - Math.floor((w - px) / f.step), i = this.hi - Math.floor((py - 2) / f.row);
    const counts = this.columns.get(t);
    if (px < f.left || i < this.lo || i > this.hi) return null;
    return { time: t, from: i ? this.tops[i - 1] : 0, to: this.tops[i], n: counts?.[i] ?? 0, all: counts ? total(counts) : 0 };
  }

  draw(g, w, h, label) {
    const f = this.frame(w, h);
    let most = 1;
    for (const c of this.columns.values()) for (const n of c) if (n > most) most = n;
    g.fillStyle = colours.heat0;
    g.fillRect(f.left, 2, w - f.left, f.rows * f.row);
    const log = Math.log1p(most);
    for (const [t, counts] of this.columns) {
      const x = f.x(t);
      for (let i = this.lo; i <= this.hi; i++) {
        if (!counts[i]) continue;
        g.fillStyle = ramp[Math.min(63, Math.round(10 + (53 * Math.log1p(counts[i])) / log))];
        g.fillRect(x, f.y(i), f.step + 0.4, f.row + 0.4);
      }
    }
    g.textBaseline = "middle";
    g.textAlign = "right";
    g.lineWidth = 1;
    let last = Infinity;
    for (const mark of [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 100]) {
      const i = this.tops.findIndex((t) => t >= mark * 0.999);
      if (i < this.lo || i > this.hi) continue;
      const y = f.y(i);
      if (last - y < 14 || y < 4) continue;
      last = y;
      g.fillStyle = colours.soft;
      g.fillText(label(mark), f.left - 8, Math.max(y, 8));
      g.globalAlpha = 0.5;
      g.strokeStyle = colours.line;
      g.beginPath(); g.moveTo(f.left, Math.round(y) + 0.5); g.lineTo(w, Math.round(y) + 0.5); g.stroke();
      g.globalAlpha = 1;
    }
    this.line(g, f, 0.99, colours.warn);
    seconds(g, f.left, w, h);
  }

  line(g, f, q, tone) {
    g.strokeStyle = tone;
    g.lineWidth = 1.5;
    g.beginPath();
    let was = -Infinity;
    for (const t of [...this.columns.keys()].sort((a, b) => a - b)) {
      const i = this.quantile(this.columns.get(t), q);
      if (Number.isNaN(i)) continue;
      const x = f.x(t), y = f.y(i);
      if (t - was > 1) g.moveTo(x, y);
      else g.lineTo(x, y);
      g.lineTo(x + f.step, y);
      was = t;
    }
    g.stroke();
  }
}

function total(counts) {
  let n = 0;
  for (const c of counts) n += c;
  return n;
}

// band draws the states since the start, or of the last hour if that is longer.
export function band(g, w, h, timeline, since, state, now) {
  const from = Math.max(since, now - 3600e3), tone = { steady: "good", alert: "warn", inflection: "bad" };
  const x = (t) => ((Math.max(t, from) - from) / Math.max(now - from, 1)) * w;
  const changes = timeline.map((t) => ({ at: Date.parse(t.time), from: t.from, to: t.to })).sort((a, b) => a.at - b.at);
  const rect = (a, b, s) => {
    g.fillStyle = colours[tone[s]] ?? colours.edge;
    g.globalAlpha = s === "steady" ? 0.45 : 1;
    g.fillRect(x(a), 0, Math.max(x(b) - x(a), s === "steady" ? 0 : 2), h);
    g.globalAlpha = 1;
  };
  let at = since, s = changes[0]?.from ?? state;
  for (const c of changes) {
    if (c.at > from) rect(at, c.at, s);
    at = c.at;
    s = c.to;
  }
  rect(at, now, s);
}
