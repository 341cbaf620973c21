// What the canvases share: sizes in CSS pixels, colours of the style sheet, and
// small charts.

// fit gives the canvas as many pixels as it covers on the screen.
export function fit(canvas) {
  const ratio = Math.min(3, window.devicePixelRatio || 1);
  const { width, height } = canvas.parentElement.getBoundingClientRect();
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height, ratio };
}

// ink reads the colours from the style sheet, which knows dark from light.
export function ink() {
  const style = getComputedStyle(document.documentElement);
  const colours = { font: getComputedStyle(document.body).fontFamily };
  for (const name of ["land", "border", "coast", "airport", "name", "route", "water", "wash", "bright", "amber", "good", "bad", "soft", "line", "ink"]) {
    colours[name] = style.getPropertyValue("--" + name).trim();
  }
  return colours;
}

// A Chart is a canvas that is fitted when its size or the colours change.
export class Chart {
  #canvas;
  #view = null;
  constructor(canvas) {
    this.#canvas = canvas;
  }

  resize() {
    this.#view = { ...fit(this.#canvas), colours: ink() };
  }

  // draw clears the canvas and hands it to paint.
  draw(paint) {
    if (!this.#view) this.resize();
    const { context, width, height, colours } = this.#view;
    context.clearRect(0, 0, width, height);
    paint(context, width, height, colours);
  }

  // label says in words what is drawn.
  label(text) {
    this.#canvas.setAttribute("aria-label", text);
  }
}

// line draws values over room places, from the left or, with newest, up to the
// right; with a wash below it. With a floor the scale begins there, else at the
// smallest value; with marks it is drawn: levels with their numbers.
export function line(g, width, height, values, { room, colour, wash, floor, dot, newest, marks }) {
  if (values.length < 2) return;
  const top = Math.max(...values);
  const low = floor ?? Math.min(...values);
  const pad = 3;
  const span = top - low || 1;
  const right = marks ? width - gutter : width;
  const first = newest ? room - values.length : 0;
  const x = (i) => pad + ((right - 2 * pad) * (first + i)) / (room - 1);
  const y = (v) => height - pad - ((height - 2 * pad) * (v - low)) / span;
  if (marks) drawMarks(g, width, right, low, top, y, marks);
  g.beginPath();
  values.forEach((v, i) => g.lineTo(x(i), y(v)));
  g.strokeStyle = colour;
  g.lineWidth = 1.5;
  g.lineJoin = "round";
  g.stroke();
  const end = values.length - 1;
  if (wash) {
    g.lineTo(x(end), height);
    g.lineTo(x(0), height);
    g.closePath();
    g.fillStyle = wash;
    g.fill();
  }
  if (dot) {
    g.beginPath();
    g.arc(x(end), y(values[end]), 2.6, 0, 7);
    g.fillStyle = dot;
    g.fill();
  }
}

// gutter is the room for the numbers of the marks.
const gutter = 38;

// drawMarks draws at most five levels at round numbers.
function drawMarks(g, width, right, low, top, y, colours) {
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((s) => (top - low) / s <= 5) ?? 2000;
  g.font = `11px ${colours.font}`;
  g.fillStyle = colours.soft;
  g.strokeStyle = colours.line;
  g.lineWidth = 1;
  g.textAlign = "right";
  g.textBaseline = "middle";
  for (let v = Math.ceil(low / step) * step; v <= top; v += step) {
    if (y(v) < 7) continue;
    g.beginPath();
    g.moveTo(0, Math.round(y(v)) + 0.5);
    g.lineTo(right, Math.round(y(v)) + 0.5);
    g.stroke();
    g.fillText(v, width - 2, Math.round(y(v)) + 1);
  }
}
