// Numbers as people read them: three digits and a unit, never jumping in width by much.

const digits = (v) => (v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toFixed(2));

function scaled(v, steps, base) {
  let i = 0;
  while (i < steps.length - 1 && v >= base * 0.9995) { v /= base; i++; }
  return [v, steps[i]];
}

const grouped = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });

export const rate = (v) => {
  if (!Number.isFinite(v)) return "–";
  if (v < 1000) return v === 0 || (v >= 100) || Number.isInteger(v) ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toFixed(2);
  const [n, unit] = scaled(v, ["", "k", "M", "G"], 1000);
  return digits(n) + unit;
};

export const count = (v) => (Number.isFinite(v) ? (Math.abs(v) < 1e7 ? grouped.format(v) : rate(v)) : "–");

export const number = (v) => (Number.isFinite(v) ? (v === 0 ? "0" : v >= 1000 ? rate(v) : digits(v)) : "–");

export const fraction = (v) => (Number.isFinite(v) ? v.toFixed(2) : "–");

export const bytes = (v) => {
  if (!Number.isFinite(v)) return "–";
  const sign = v < 0 ? "−" : "";
  const [n, unit] = scaled(Math.abs(v), ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
  return sign + (unit === "B" ? n.toFixed(0) : digits(n)) + " " + unit;
};

// time takes seconds.
export const time = (v) => {
  if (!Number.isFinite(v)) return "–";
  if (v <= 0) return "0";
  if (v < 1e-6) return (v * 1e9).toFixed(0) + " ns";
  if (v < 0.9995e-3) return digits(v * 1e6) + " µs";
  if (v < 0.9995) return digits(v * 1e3) + " ms";
  if (v < 99.95) return digits(v) + " s";
  return age(v);
};

export const age = (v) => {
  if (!Number.isFinite(v)) return "–";
  v = Math.max(0, Math.floor(v));
  const d = Math.floor(v / 86400), h = Math.floor(v / 3600) % 24, m = Math.floor(v / 60) % 60, s = v % 60;
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  if (m) return `${m} min ${s} s`;
  return `${s} s`;
};

export const percent = (v) => (Number.isFinite(v) ? (v >= 0.0995 || v === 0 ? (v * 100).toFixed(v ? 1 : 0) : (v * 100).toFixed(2)) + " %" : "–");

export const plain = (v) => String(v);

// clock takes anything that Date does.
export const clock = (v) => {
  const d = new Date(v);
  return Number.isNaN(d.getTime()) ? "–" : d.toLocaleTimeString("en-GB");
};
export const moment = (v) => {
  const d = new Date(v);
  if (Number.isNaN(d.getTime())) return "–";
  const today = d.toDateString() === new Date().toDateString();
  return today ? clock(d) : d.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) + ", " + clock(d);
};
