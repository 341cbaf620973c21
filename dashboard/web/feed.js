// Snapshots: from the stream while it lives, by asking while it does not. Which of the
// two, and for how long there was nothing, is always told.
import { ask } from "./api.js";

const patience = 3500; // ms without an event: then it is not live
const askEvery = 2000;
const hiddenFor = 30_000; // a page nobody sees asks for nothing

export class Feed {
  constructor(onSnapshot, onMode) {
    this.onSnapshot = onSnapshot;
    this.onMode = onMode;
    this.source = null;
    this.event = 0; // when the stream last brought something
    this.last = 0; // when anything came
    this.asked = 0;
    this.opened = 0;
    this.pause = 1000;
    this.problem = "";
  }

  start() {
    this.open();
    this.fetch();
    setInterval(() => this.watch(), 500);
    document.addEventListener("visibilitychange", () => this.seen());
    addEventListener("online", () => this.open());
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", (e) => e.persisted && this.open());
  }

  open() {
    this.close();
    this.opened = performance.now();
    const s = new EventSource("/api/live");
    this.source = s;
    s.onmessage = (e) => {
      if (s !== this.source) return;
      let v;
      try { v = JSON.parse(e.data); } catch { return; }
      if (this.event === 0 || performance.now() - this.event > patience) this.fetch(); // the heat maps of the meantime
      this.event = this.last = performance.now();
      this.pause = 1000;
      this.onSnapshot(v);
      this.tell();
    };
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  seen() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.close(), hiddenFor);
    else if (!this.source) this.open();
  }

  // fetch asks for one whole snapshot.
  async fetch() {
    this.asked = performance.now();
    try {
      const v = await ask("/api/snapshot", { patience: 5000 });
      this.last = performance.now();
      this.onSnapshot(v);
    } catch (err) {
      this.problem = err.message;
    }
    this.tell();
  }

  watch() {
    if (document.hidden && !this.source) return;
    const now = performance.now();
    const live = this.event && now - this.event < patience;
    if (!live) {
      if (now - this.asked > askEvery) this.fetch();
      // A browser gives up on a stream that was refused, and may wait long for one that hangs.
      if (now - this.opened > Math.max(this.pause, this.source?.readyState === EventSource.CLOSED ? 0 : patience)) {
        this.pause = Math.min(this.pause * 2, 10_000);
        this.open();
      }
    }
    this.tell();
  }

  tell() {
    const now = performance.now();
    const old = this.last ? (now - this.last) / 1000 : Infinity;
    if (this.event && now - this.event < patience) this.onMode("yes", old);
    else if (old < (askEvery + patience) / 1000) this.onMode("poll", old);
    else this.onMode("no", old);
  }
}
