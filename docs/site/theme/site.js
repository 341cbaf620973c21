// Menu, light or dark, copy buttons and search. Without scripts the pages still read.
const root = document.currentScript.dataset.root;
const element = (id) => document.getElementById(id);

element('site-menu').addEventListener('click', (e) => {
  const open = element('site-nav').classList.toggle('open');
  e.currentTarget.setAttribute('aria-expanded', open);
});

element('site-theme').addEventListener('click', () => {
  const html = document.documentElement;
  const dark = html.dataset.theme ? html.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  html.dataset.theme = dark ? 'light' : 'dark';
  try { localStorage.setItem('weir-theme', html.dataset.theme); } catch { /* storage is off: for this page only */ }
});

for (const pre of document.querySelectorAll('pre')) {
  const button = Object.assign(document.createElement('button'), { className: 'copy', textContent: 'Copy' });
  button.addEventListener('click', async () => {
    // Prompts are not part of the command.
    const text = pre.querySelector('code').textContent.replace(/^\$ /gm, '');
    await navigator.clipboard.writeText(text);
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = 'Copy'; }, 1500);
  });
  pre.append(button);
}

document.querySelector('nav a[aria-current]')?.scrollIntoView({ block: 'nearest' });

// The index is loaded when the field is first used.
let loading;
function load() {
  loading ??= new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement('script'), { src: `${root}search-index.js`, onload: resolve, onerror: reject });
    document.head.append(script);
  });
  return loading;
}

// Pages to begin with rank above measurements and history.
const weights = [[/^(howto|tutorial|zh)\//, 6], [/^reference\//, 4], [/^runbooks\//, 2], [/^(project|lab)\//, -6]];

// find returns sections that have every word, best first.
function find(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const found = [];
  for (const [url, title, sections] of weirSearch) {
    const weight = weights.find(([pattern]) => pattern.test(url))?.[1] ?? 0;
    for (const [id, heading, text] of sections) {
      const [t, h, b] = [title, heading, text].map((s) => s.toLowerCase());
      let score = weight + (id ? 0 : 3);
      for (const w of words) {
        const many = b.split(w).length - 1;
        const part = (t.includes(w) ? 8 : 0) + (h.includes(w) ? 12 : 0) + Math.min(many, 5);
        if (!part) { score = -Infinity; break; }
        score += part;
      }
      if (h === words.join(' ')) score += 30;
      if (score > -Infinity) found.push({ url: root + url + (id ? `#${id}` : ''), title, heading, text, words, score });
    }
  }
  return found.sort((a, b) => b.score - a.score).slice(0, 20);
}

// excerpt is the text around the first word found, with the words marked.
function excerpt({ text, words }) {
  const lower = text.toLowerCase();
  const at = Math.max(0, Math.min(...words.map((w) => lower.indexOf(w)).filter((i) => i >= 0), text.length) - 50);
  const part = (at ? '… ' : '') + text.slice(at, at + 190).replace(at ? /^\S*\s/ : '', '');
  const small = document.createElement('small');
  const pattern = new RegExp(`(${words.map((w) => w.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')).join('|')})`, 'gi');
  part.split(pattern).forEach((s, i) => small.append(i % 2 ? Object.assign(document.createElement('mark'), { textContent: s }) : s));
  return small;
}

const [query, results] = [element('site-query'), element('site-results')];
let chosen = 0;

function choose(i) {
  const links = [...results.querySelectorAll('a')];
  if (!links.length) return;
  chosen = (i + links.length) % links.length;
  links.forEach((a, n) => a.setAttribute('aria-selected', n === chosen));
  links[chosen].scrollIntoView({ block: 'nearest' });
}

async function show() {
  await load();
  const list = find(query.value);
  results.hidden = !query.value.trim();
  results.replaceChildren(...list.map((r) => {
    const a = Object.assign(document.createElement('a'), { href: r.url });
    const name = document.createElement('b');
    name.textContent = r.heading === r.title ? r.title : `${r.heading} – ${r.title}`;
    a.append(name, excerpt(r));
    const li = document.createElement('li');
    li.append(a);
    return li;
  }));
  if (!list.length) results.append(Object.assign(document.createElement('li'), { className: 'none', textContent: 'Nothing has all of these words.' }));
  choose(0);
}

query.addEventListener('focus', load);
query.addEventListener('input', show);
query.addEventListener('keydown', (e) => {
  if (e.key === 'ArrowDown' || e.key === 'ArrowUp') {
    e.preventDefault();
    choose(chosen + (e.key === 'ArrowDown' ? 1 : -1));
  } else if (e.key === 'Enter') {
    results.querySelectorAll('a')[chosen]?.click();
  } else if (e.key === 'Escape') {
    results.hidden = true;
    query.blur();
  }
});
document.addEventListener('click', (e) => { if (!e.target.closest('.search')) results.hidden = true; });
document.addEventListener('keydown', (e) => {
  if (e.key === '/' && !e.target.closest('input, textarea') && !e.ctrlKey && !e.metaKey) {
    e.preventDefault();
    query.focus();
  }
});
