// One event stream of many channels, and a judge of what it brings.

// openStream subscribes and stays subscribed. The browser reconnects by itself
// with Last-Event-ID; where it gives up, this starts over from the same place.
export function openStream(channels, on) {
  const query = channels.map((c) => "channel=" + encodeURIComponent(c)).join("&") + "&envelope=1";
  let source = null;
  let position = "";
  let timer = 0;
  let failures = 0;

  function open() {
    clearTimeout(timer);
    timer = 0;
    source = new EventSource("sse?" + query + (position ? "&lastEventId=" + encodeURIComponent(position) : ""));
    source.onopen = () => {
      failures = 0;
      on.open(position);
    };
    source.onmessage = (e) => {
      if (e.lastEventId) position = e.lastEventId;
      on.message(JSON.parse(e.data));
    };
    source.addEventListener("gap", (e) => {
      if (e.lastEventId) position = e.lastEventId;
      on.gap(JSON.parse(e.data));
    });
    source.addEventListener("end", (e) => on.end(JSON.parse(e.data)));
    source.onerror = () => {
      on.lost();
      if (source.readyState === EventSource.CLOSED) reopen(Math.min(5000, 500 * 2 ** failures++));
    };
  }

  function reopen(wait) {
    source.close();
    clearTimeout(timer);
    timer = setTimeout(open, wait);
  }

  open();
  return {
    position: () => position,
    // cut closes the connection and opens it again after wait milliseconds.
    cut(wait) {
      on.lost();
      reopen(wait);
    },
  };
}

// Continuity counts what is missing and what came twice, per channel and run of
// the publisher, by the sequence numbers in the payload. The first message of a
// run that the page sees is where it joined.
export class Continuity {
  lost = 0;
  repeated = 0;
  disordered = 0;
  checked = 0;
  #seq = new Map();
  #offset = new Map();

  check(m) {
    this.checked++;
    const chain = m.channel + " " + m.data.run;
    const last = this.#seq.get(chain);
    if (last !== undefined && m.data.seq <= last) {
      this.repeated++;
      return false;
    }
    if (last !== undefined) this.lost += m.data.seq - last - 1;
    if (this.#seq.size > 1000) this.#seq.clear(); // a thousand restarts of the publisher
    this.#seq.set(chain, m.data.seq);

    // Offsets rise along a namespace's log, over all its channels.
    if (m.id) {
      const epoch = m.id.slice(0, m.id.indexOf("-"));
      if (m.offset <= (this.#offset.get(epoch) ?? 0)) this.disordered++;
      this.#offset.set(epoch, m.offset);
    }
    return true;
  }
}
