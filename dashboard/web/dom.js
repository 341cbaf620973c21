// The page's only way to the document. Everything that comes from outside is set as text.

export const $ = (id) => document.getElementById(id);

// el makes an element: attributes, listeners as on…, text or elements as children.
export function el(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else e.setAttribute(key, value === true ? "" : String(value));
  }
  for (const c of children) if (c !== null && c !== undefined) e.append(c);
  return e;
}

// text sets an element's text if it differs: most numbers stand still most of the time.
export function text(e, value) {
  const v = String(value);
  if (e.textContent !== v) e.textContent = v;
}

export function attr(e, name, value) {
  if (value === null || value === undefined || value === false) {
    if (e.hasAttribute(name)) e.removeAttribute(name);
  } else if (e.getAttribute(name) !== String(value)) e.setAttribute(name, String(value));
}

const looks = new WeakMap();

// look sets a custom property of an element's style.
export function look(e, name, value) {
  let known = looks.get(e);
  if (!known) looks.set(e, (known = {}));
  if (known[name] === value) return;
  known[name] = value;
  e.style.setProperty(name, value);
}

// list makes the children of parent follow items, each known by its key: what is there
// is changed in place, so focus and selection stay where they are.
export function list(parent, items, key, make, fill, empty = "") {
  const known = (parent.weirRows ??= new Map());
  const seen = new Set();
  let at = parent.firstElementChild;
  for (const item of items) {
    const k = String(key(item));
    if (seen.has(k)) continue;
    seen.add(k);
    let row = known.get(k);
    if (!row) known.set(k, (row = make(item)));
    fill(row, item);
    if (row === at) at = at.nextElementSibling;
    else parent.insertBefore(row, at);
  }
  for (const [k, row] of known) {
    if (!seen.has(k)) { row.remove(); known.delete(k); }
  }
  let none = parent.weirEmpty;
  if (seen.size === 0 && empty) {
    if (!none) {
      const columns = parent.tagName === "TBODY" ? parent.parentElement.tHead.rows[0].cells.length : 0;
      none = columns ? el("tr", {}, el("td", { colspan: columns, class: "empty" })) : el(parent.tagName === "DIV" ? "p" : "li", { class: "empty" });
      parent.weirEmpty = none;
    }
    text(none.tagName === "TR" ? none.cells[0] : none, empty);
    if (none.parentElement !== parent) parent.append(none);
  } else if (none) none.remove();
}

// cells makes a table row with cells of these classes.
export const cells = (...classes) => el("tr", {}, ...classes.map((c) => el("td", c ? { class: c } : {})));

// bars shows { name, value (a text), share 0..1, tone } as bars.
export function bars(parent, items, empty) {
  list(parent, items, (i) => i.name,
    (i) => el("li", {}, el("span", { title: i.name }, i.name), el("span", { class: "track" }, el("i")), el("span")),
    (row, i) => {
      const fill = row.children[1].firstChild;
      look(fill, "--w", `${(100 * Math.min(Math.max(i.share || 0, 0), 1)).toFixed(1)}%`);
      look(fill, "--tone", i.tone ? `var(--${i.tone})` : "var(--water)");
      text(row.children[2], i.value);
    }, empty);
}

export const track = () => el("span", { class: "track" }, el("i"));
export function fillTrack(t, share, tone) {
  look(t.firstChild, "--w", `${(100 * Math.min(Math.max(share || 0, 0), 1)).toFixed(1)}%`);
  look(t.firstChild, "--tone", `var(--${tone || "water"})`);
}

let fading = 0;
export function toast(message) {
  const t = $("toast");
  t.textContent = message;
  t.classList.add("on");
  clearTimeout(fading);
  fading = setTimeout(() => t.classList.remove("on"), 4000);
}

// confirmed asks and resolves to whether the answer was yes.
export function confirmed(question, yes) {
  const d = $("confirm");
  text($("confirm-text"), question);
  text($("confirm-yes"), yes);
  d.returnValue = "no";
  return new Promise((resolve) => {
    d.addEventListener("close", () => resolve(d.returnValue === "yes"), { once: true });
    d.showModal();
  });
}
