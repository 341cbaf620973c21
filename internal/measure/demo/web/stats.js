// Rates and latencies over a moving window.

const perDecade = 20;
const lowest = -1; // 10^-1 ms
const decades = 6; // to 10^5 ms
const size = perDecade * decades;
const seconds = 10;

// Latency is a histogram of the last ten seconds, in one slot per second.
export class Latency {
  #slots = Array.from({ length: seconds }, () => ({ second: -1, counts: new Uint32Array(size) }));

  add(ms, now) {
    const second = Math.floor(now / 1000);
    const slot = this.#slots[second % seconds];
    if (slot.second !== second) {
      slot.second = second;
      slot.counts.fill(0);
    }
    const i = Math.floor((Math.log10(Math.max(ms, 0.1)) - lowest) * perDecade);
    slot.counts[Math.min(size - 1, i)]++;
  }

  // window returns the counts of the last ten seconds and two quantiles, each the
  // upper end of its bucket (12 % wide); null without any.
  window(now) {
    const second = Math.floor(now / 1000);
    const counts = new Uint32Array(size);
    let n = 0;
    for (const slot of this.#slots) {
      if (second - slot.second >= seconds) continue;
      slot.counts.forEach((c, i) => {
        counts[i] += c;
        n += c;
      });
    }
    const quantile = (q) => {
      let rank = Math.ceil(q * n);
      for (let i = 0; i < size; i++) {
        rank -= counts[i];
        if (rank <= 0) return edge(i + 1);
      }
      return edge(size);
    };
    return n === 0 ? null : { counts, n, p50: quantile(0.5), p99: quantile(0.99) };
  }
}

// edge is the lower end of bucket i in milliseconds.
export function edge(i) {
  return 10 ** (lowest + i / perDecade);
}

// bucket is where ms lies, with its fraction.
export function bucket(ms) {
  return (Math.log10(ms) - lowest) * perDecade;
}

// Rate counts events per second and remembers the last minute.
export class Rate {
  total = 0;
  history = [];
  #since = 0;

  add() {
    this.total++;
    this.#since++;
  }

  // turn ends a second of the given true length in milliseconds.
  turn(length) {
    this.history.push((this.#since * 1000) / Math.max(length, 1));
    if (this.history.length > 60) this.history.shift();
    this.#since = 0;
  }

  // now is the mean of the last three seconds.
  now() {
    const last = this.history.slice(-3);
    return last.length === 0 ? 0 : last.reduce((a, b) => a + b) / last.length;
  }
}

// clock returns milliseconds since 1970 with a fraction. The page's monotonic
// clock drifts from the machine's, so it is set again when they differ.
let origin = performance.timeOrigin;
export function clock() {
  const now = origin + performance.now();
  const off = Date.now() - now;
  if (off > 5 || off < -5) {
    origin += off;
    return now + off;
  }
  return now;
}
