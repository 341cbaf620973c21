// The market: the index as a chart with its scale, the shares as rows.

import { Chart, line } from "./draw.js";

const indexRoom = 252; // trading days of a year
const shareRoom = 24; // months
const price = new Intl.NumberFormat("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", timeZone: "UTC" });

// showChange says a change with an arrow too, for those who do not see the colours.
function showChange(element, t) {
  const way = t.change > 0 ? "up" : t.change < 0 ? "down" : "";
  element.textContent = (way === "up" ? "▲ " : way === "down" ? "▼ " : "") + price.format(Math.abs(t.percent)) + " %";
  element.dataset.way = way;
}

class Line {
  values = [];
  dates = [];
  lap = 0;
  #room;
  constructor(room) {
    this.#room = room;
  }

  add(t) {
    if (t.lap !== this.lap || (this.dates.length > 0 && t.date <= this.dates.at(-1))) {
      this.values = [];
      this.dates = [];
      this.lap = t.lap;
    }
    this.values.push(t.price);
    this.dates.push(t.date);
    if (this.values.length > this.#room) {
      this.values.shift();
      this.dates.shift();
    }
  }
}

export class Market {
  #index = { line: new Line(indexRoom), last: null };
  #shares = new Map();
  #changed = new Set();
  #chart;
  #parts;

  constructor(parts, symbols) {
    this.#parts = parts;
    this.#chart = new Chart(parts.chart);
    for (const symbol of symbols) this.#shares.set(symbol, this.#row(symbol));
  }

  #row(symbol) {
    const row = this.#parts.shares.insertRow();
    const name = document.createElement("th");
    name.scope = "row";
    name.textContent = symbol;
    row.append(name);
    const frame = document.createElement("div");
    const canvas = document.createElement("canvas");
    canvas.setAttribute("aria-hidden", "true");
    frame.append(canvas);
    row.insertCell().append(frame);
    const close = row.insertCell();
    const change = row.insertCell();
    change.className = "change";
    close.textContent = change.textContent = "–";
    return { line: new Line(shareRoom), chart: new Chart(canvas), close, change, last: null };
  }

  tick(t) {
    const entry = t.symbol === "sp500" ? this.#index : this.#shares.get(t.symbol);
    if (!entry) return;
    entry.line.add(t);
    entry.last = t;
    this.#changed.add(entry);
  }

  resize() {
    this.#chart.resize();
    this.#changed.add(this.#index);
    for (const share of this.#shares.values()) {
      share.chart.resize();
      this.#changed.add(share);
    }
  }

  // draw shows what changed since the last call.
  draw() {
    for (const entry of this.#changed) {
      if (!entry.last) continue;
      if (entry === this.#index) this.#drawIndex();
      else this.#drawShare(entry);
    }
    this.#changed.clear();
  }

  #drawIndex() {
    const { last, line: series } = this.#index;
    this.#parts.price.textContent = price.format(last.price);
    this.#parts.date.textContent = day.format(new Date(last.date));
    showChange(this.#parts.change, last);
    const low = Math.min(...series.values);
    const high = Math.max(...series.values);
    this.#chart.label(`S&P 500 from ${series.dates[0]} to ${last.date}: ${price.format(low)} to ${price.format(high)}`);
    this.#chart.draw((g, width, height, colours) => {
      line(g, width, height - 14, series.values, { room: indexRoom, colour: colours.water, wash: colours.wash, dot: colours.bright, marks: colours });
      g.font = `11px ${colours.font}`;
      g.fillStyle = colours.soft;
      g.textBaseline = "bottom";
      g.textAlign = "left";
      g.fillText(day.format(new Date(series.dates[0])), 2, height);
      if (series.values.length === indexRoom) {
        g.textAlign = "right";
        g.fillText(day.format(new Date(last.date)), width - 38, height);
      }
    });
  }

  #drawShare(share) {
    share.close.textContent = price.format(share.last.price);
    showChange(share.change, share.last);
    share.chart.draw((g, width, height, colours) => {
      line(g, width, height, share.line.values, { room: shareRoom, colour: colours.water, dot: colours.bright });
    });
  }
}
