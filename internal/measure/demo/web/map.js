// The map: an Albers equal-area conic projection, the states, and shipments that
// move along great circles.

import { fit, ink } from "./draw.js";

const rad = Math.PI / 180;

// albers returns a function from degrees to the plane (Snyder 1987, §14), with
// the standard parallels of the US Geological Survey's maps.
function albers() {
  const s1 = Math.sin(29.5 * rad);
  const n = (s1 + Math.sin(45.5 * rad)) / 2;
  const c = Math.cos(29.5 * rad) ** 2 + 2 * n * s1;
  const radius = (lat) => Math.sqrt(c - 2 * n * Math.sin(lat * rad)) / n;
  const origin = radius(38);
  return (lon, lat) => {
    const r = radius(lat);
    const a = n * (lon + 96) * rad;
    return [r * Math.sin(a), r * Math.cos(a) - origin];
  };
}

const project = albers();

// decode turns map.json into projected arcs, and tells which are inland.
function decode(map) {
  const arcs = map.arcs.map((arc) => {
    const points = [];
    let x = 0;
    let y = 0;
    for (let i = 0; i < arc.length; i += 2) {
      x += arc[i];
      y += arc[i + 1];
      points.push(project(x / map.scale, y / map.scale));
    }
    return points;
  });
  const uses = new Array(arcs.length).fill(0);
  for (const ring of map.rings) for (const a of ring) uses[a < 0 ? ~a : a]++;
  return { arcs, rings: map.rings, inland: uses.map((n) => n > 1) };
}

// greatCircle returns steps + 1 projected points from a to b.
function greatCircle(a, b, steps) {
  const vector = ([lat, lon]) => [
    Math.cos(lat * rad) * Math.cos(lon * rad),
    Math.cos(lat * rad) * Math.sin(lon * rad),
    Math.sin(lat * rad),
  ];
  const u = vector(a);
  const v = vector(b);
  const angle = Math.acos(Math.min(1, u[0] * v[0] + u[1] * v[1] + u[2] * v[2]));
  const points = [];
  for (let i = 0; i <= steps; i++) {
    const f = i / steps;
    const p = Math.sin((1 - f) * angle) / Math.sin(angle);
    const q = Math.sin(f * angle) / Math.sin(angle);
    const [x, y, z] = [0, 1, 2].map((k) => p * u[k] + q * v[k]);
    points.push(project(Math.atan2(y, x) / rad, Math.atan2(z, Math.hypot(x, y)) / rad));
  }
  return { points, kilometres: angle * 6371 };
}

const steps = 48;
const trailKilometres = 420;
const named = ["SEA", "SFO", "LAX", "PHX", "SLC", "DEN", "MSP", "DFW", "IAH", "ORD", "ATL", "MIA", "BOS", "JFK", "IAD"];
const few = ["SEA", "SFO", "LAX", "DEN", "DFW", "ORD", "ATL", "MIA", "JFK"];

export class ShipmentMap {
  #canvas;
  #ground = document.createElement("canvas");
  #land;
  #airports;
  #view = null;
  #ships = new Map();
  #rings = [];
  #still;

  constructor(canvas, map, airports, still) {
    this.#canvas = canvas;
    this.#land = decode(map);
    this.#airports = airports;
    this.#still = still;
  }

  get size() {
    return this.#ships.size;
  }

  // move takes a message; at is the page's clock.
  move(m, at) {
    let ship = this.#ships.get(m.id);
    if (!ship) {
      const route = greatCircle(this.#airports[m.from], this.#airports[m.to], steps);
      ship = { from: m.from, to: m.to, ...route, shown: m.progress };
      this.#ships.set(m.id, ship);
    }
    Object.assign(ship, { progress: m.progress, seconds: m.seconds, told: m.t, heard: at });
    if (m.status === "arrived") {
      this.#ships.delete(m.id);
      this.#rings.push({ at: ship.points[steps], since: at });
      if (this.#rings.length > 60) this.#rings.shift();
    }
  }

  // forget drops the shipments of which nothing was heard for ten seconds: the
  // publisher has started again with others.
  forget(at) {
    for (const [id, ship] of this.#ships) if (at - ship.heard > 10_000) this.#ships.delete(id);
  }

  // resize lays the ground anew: after a change of size or of colours.
  resize() {
    const { context, width, height, ratio } = fit(this.#canvas);
    let [x0, y0, x1, y1] = [Infinity, Infinity, -Infinity, -Infinity];
    for (const arc of this.#land.arcs) {
      for (const [x, y] of arc) {
        x0 = Math.min(x0, x);
        x1 = Math.max(x1, x);
        y0 = Math.min(y0, y);
        y1 = Math.max(y1, y);
      }
    }
    const margin = width > 980 ? width * 0.015 : 26; // the names of the coasts need room
    const scale = Math.min((width - 2 * margin) / (x1 - x0), (height - 2 * margin) / (y1 - y0));
    const dx = (width - scale * (x1 - x0)) / 2 - scale * x0;
    const dy = (height - scale * (y1 - y0)) / 2 - scale * y0;
    this.#view = { context, width, height, ratio, colours: ink(), at: ([x, y]) => [x * scale + dx, y * scale + dy] };
    this.#drawGround();
  }

  #drawGround() {
    const { width, height, ratio, colours, at } = this.#view;
    this.#ground.width = Math.round(width * ratio);
    this.#ground.height = Math.round(height * ratio);
    const g = this.#ground.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.lineJoin = "round";
    g.fillStyle = colours.land;
    for (const ring of this.#land.rings) {
      g.beginPath();
      for (const a of ring) {
        const points = a < 0 ? this.#land.arcs[~a].toReversed() : this.#land.arcs[a];
        for (const p of points) g.lineTo(...at(p));
      }
      g.closePath();
      g.fill();
    }
    this.#strokeArcs(g, true, colours.land, 1.2); // closes the seams of the filled states
    this.#strokeArcs(g, true, colours.border, 0.7);
    this.#strokeArcs(g, false, colours.coast, 1);
    g.fillStyle = colours.airport;
    for (const [lat, lon] of Object.values(this.#airports)) {
      const [x, y] = at(project(lon, lat));
      g.beginPath();
      g.arc(x, y, width > 700 ? 1.3 : 0.9, 0, 7);
      g.fill();
    }
    this.#drawNames(g);
  }

  #strokeArcs(g, inland, style, width) {
    g.strokeStyle = style;
    g.lineWidth = width;
    g.beginPath();
    this.#land.arcs.forEach((arc, i) => {
      if (this.#land.inland[i] !== inland) return;
      arc.forEach((p, j) => (j === 0 ? g.moveTo(...this.#view.at(p)) : g.lineTo(...this.#view.at(p))));
    });
    g.stroke();
  }

  #drawNames(g) {
    const { width, colours, at } = this.#view;
    const names = width > 620 ? named : few;
    g.font = `500 ${width > 1100 ? 12 : 10}px ${colours.font}`;
    g.fillStyle = colours.name;
    g.strokeStyle = colours.land;
    g.lineWidth = 3;
    g.textBaseline = "middle";
    for (const iata of names) {
      const airport = this.#airports[iata];
      if (!airport) continue;
      const [x, y] = at(project(airport[1], airport[0]));
      const east = airport[1] > -80 || iata === "ORD";
      g.textAlign = east ? "left" : "right";
      g.strokeText(iata, x + (east ? 6 : -6), y + 1); // a halo, so that routes do not cross the name
      g.fillText(iata, x + (east ? 6 : -6), y + 1);
    }
  }

  draw(now) {
    if (!this.#view) return;
    const { context: g, width, height, colours } = this.#view;
    g.clearRect(0, 0, width, height);
    g.drawImage(this.#ground, 0, 0, width, height);
    g.lineCap = "round";
    g.lineJoin = "round";
    for (const ship of this.#ships.values()) this.#drawRoute(g, ship, colours);
    for (const ship of this.#ships.values()) this.#drawShip(g, ship, colours, now);
    this.#drawArrivals(g, colours, now);
  }

  #drawRoute(g, ship, colours) {
    g.strokeStyle = colours.route;
    g.lineWidth = 0.8;
    g.beginPath();
    for (let i = 0; i <= steps; i += 4) g.lineTo(...this.#view.at(ship.points[i]));
    g.stroke();
  }

  // place returns the point at fraction f of the ship's route.
  #place(ship, f) {
    const i = Math.min(steps - 1, Math.floor(f * steps));
    const r = f * steps - i;
    const [a, b] = [ship.points[i], ship.points[i + 1]];
    return this.#view.at([a[0] + (b[0] - a[0]) * r, a[1] + (b[1] - a[1]) * r]);
  }

  #drawShip(g, ship, colours, now) {
    // Between two messages the ship goes on by itself, but not for long: a map
    // that moves without news would lie.
    const ahead = Math.min(1500, Math.max(0, now - ship.told)) / 1000 / ship.seconds;
    const target = Math.min(1, ship.progress + (this.#still ? 0 : ahead));
    ship.shown = this.#still ? target : Math.max(ship.shown, ship.shown + (target - ship.shown) * 0.25);
    const tail = Math.max(0, ship.shown - trailKilometres / ship.kilometres);
    const pieces = 8;
    g.strokeStyle = colours.water;
    for (let i = 0; i < pieces; i++) {
      const from = tail + ((ship.shown - tail) * i) / pieces;
      const to = tail + ((ship.shown - tail) * (i + 1)) / pieces;
      g.globalAlpha = ((i + 1) / pieces) ** 2 * 0.8;
      g.lineWidth = 0.8 + (1.4 * i) / pieces;
      g.beginPath();
      g.moveTo(...this.#place(ship, from));
      g.lineTo(...this.#place(ship, to));
      g.stroke();
    }
    g.globalAlpha = 1;
    g.fillStyle = colours.bright;
    g.beginPath();
    g.arc(...this.#place(ship, ship.shown), this.#view.width > 700 ? 2.3 : 1.7, 0, 7);
    g.fill();
  }

  #drawArrivals(g, colours, now) {
    this.#rings = this.#rings.filter((r) => now - r.since < 1600);
    g.strokeStyle = colours.amber;
    g.lineWidth = 1.6;
    for (const r of this.#rings) {
      const age = Math.max(0, now - r.since) / 1600;
      g.globalAlpha = 1 - age;
      g.beginPath();
      g.arc(...this.#view.at(r.at), this.#still ? 6 : 3 + 13 * Math.sqrt(age), 0, 7);
      g.stroke();
    }
    g.globalAlpha = 1;
  }
}
