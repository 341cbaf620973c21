// What the page counts, tested where no browser is needed: node --test internal/measure/demo/webtest
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

// load imports a module of the page; they are served as modules, whatever the
// nearest package.json says.
async function load(name) {
  const text = await readFile(new URL("../web/" + name, import.meta.url), "utf8");
  return import("data:text/javascript;base64," + Buffer.from(text).toString("base64"));
}

const { Continuity } = await load("stream.js");
const { Latency, Rate } = await load("stats.js");

// judge feeds [channel, seq, offset] and returns what was counted.
function judge(messages, run = () => "r") {
  const c = new Continuity();
  messages.forEach(([channel, seq, offset], i) => c.check({ channel, id: `e-${offset}`, offset, data: { run: run(i), seq } }));
  return [c.lost, c.repeated, c.disordered];
}

test("a complete stream is clean, wherever the page joined it", () => {
  assert.deepEqual(judge([["a", 7, 20], ["b", 1, 21], ["a", 8, 22], ["b", 2, 25]]), [0, 0, 0]);
});

test("a planted loss is counted by its size", () => {
  assert.deepEqual(judge([["a", 1, 1], ["a", 5, 5], ["a", 6, 6]]), [3, 0, 0]);
});

test("a planted repeat is counted", () => {
  assert.deepEqual(judge([["a", 1, 1], ["a", 2, 2], ["a", 2, 2], ["a", 1, 1], ["a", 3, 3]]), [0, 2, 0]);
});

test("a planted reorder between channels is counted by offset", () => {
  assert.deepEqual(judge([["a", 1, 1], ["b", 1, 3], ["a", 2, 2], ["a", 3, 4]]), [0, 0, 1]);
});

test("another run of the publisher begins a chain of its own", () => {
  assert.deepEqual(judge([["a", 8, 8], ["a", 9, 9], ["a", 1, 10], ["a", 2, 11]], (i) => (i < 2 ? "r" : "s")), [0, 0, 0]);
});

test("quantiles are those of the last ten seconds", () => {
  const l = new Latency();
  assert.equal(l.window(0), null);
  for (let i = 0; i < 100; i++) l.add(5000, 1000);
  for (let i = 1; i <= 100; i++) l.add(i, 12_500);
  const w = l.window(13_000);
  assert.equal(w.n, 100);
  assert.ok(w.p50 >= 50 && w.p50 <= 57, `p50 ${w.p50}`);
  assert.ok(w.p99 >= 99 && w.p99 <= 113, `p99 ${w.p99}`);
  assert.equal(l.window(60_000), null);
});

test("a rate is per second of true length", () => {
  const r = new Rate();
  for (let i = 0; i < 300; i++) r.add();
  r.turn(1500);
  assert.equal(r.now(), 200);
  assert.equal(r.total, 300);
});
