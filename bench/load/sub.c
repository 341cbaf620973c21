// Subscribers: handshakes, counting what arrives, echo, ends.
//
// After the handshake no peer's protocol is parsed. Every payload begins with a
// mark: '^', the time it was due and its number. Received bytes are searched for
// '^' and that is all, so one client serves every server at the same cost.
#define _GNU_SOURCE
#include "load.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_ROOM = 4096, READ_ROOM = 1 << 20, STOPPED_BUFFER = 4096 };
static char in[READ_ROOM], text[1 << 20], frame[1 << 20];
static bool resuming;

static void watch_for(struct conn *c, int op, uint32_t events) {
  struct epoll_event e = {.events = events, .data.ptr = c};
  epoll_ctl(run.ep, op, c->fd, &e);
}

static void open_one(struct conn *c, int index) {
  bool slow = opt.slow && index % 100 < opt.slow;
  c->role = SUBSCRIBER, c->index = index, c->state = CONNECTING;
  c->held = 0, c->head_len = 0, c->id_match = 0, c->newest = 0;
  c->fd = dial(index, slow ? STOPPED_BUFFER : 0);
  if (!c->head) c->head = malloc(HEAD_ROOM + 1);
  run.opening++;
  watch_for(c, EPOLL_CTL_ADD, EPOLLOUT);
}

// lost_conn counts a connection that ended without being asked to.
static void lost_conn(struct conn *c, const char *why) {
  if (c->state == READY) {
    run.live--, run.ended++;
    if (run.ended == 1) fprintf(stderr, "load: subscriber %d: %s\n", c->index, why);
  } else {
    run.opening--, run.failed++;
    if (run.failed <= 1) fprintf(stderr, "load: handshake of %d: %s: %.*s\n", c->index, why, c->head_len < 300 ? c->head_len : 300, c->head);
    if (run.failed > 20) die("is it the right server, with the right path, and with enough descriptors (ulimit -n)?", "more than 20 handshakes came to nothing");
  }
  close(c->fd);
  c->state = DEAD, c->fd = -1;
}

static void send_head(struct conn *c) {
  static const char ws[] = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                           "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
  char last[80] = "";
  expand(text, sizeof text, opt.path, c->index % opt.channels, 0, 0);
  if (resuming && c->id_len) sprintf(last, "Last-Event-ID: %.*s\r\n", c->id_len, c->id);
  int n = snprintf(frame, sizeof frame, "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%s%s%s\r\n", text, opt.port,
                   opt.sse ? "Accept: text/event-stream\r\n" : ws, opt.header, last);
  send_all(c->fd, frame, n);
}

void echo_send(struct conn *c, int count) {
  static uint32_t number;
  int o = 0;
  u64 t = now();
  for (int i = 0; i < count; i++) {
    number++;
    int n = mark(text, t, number);
    o += ws_frame(frame + o, text, n, 1);
    c->sent.count++, c->sent.sum += hash(number);
  }
  run.published += count, run.expected += count;
  send_all(c->fd, frame, o);
}

static inline u64 hex(const char *p, int n) {
  u64 v = 0;
  for (int i = 0; i < n; i++) v = v << 4 | (p[i] <= '9' ? p[i] - '0' : p[i] - 'a' + 10);
  return v;
}

static inline void delivered(struct conn *c, const char *m, u64 t) {
  u64 due = hex(m + 1, 16);
  uint32_t number = hex(m + 17, 8);
  c->got.count++, c->got.sum += hash(number);
  if (number < c->newest)
    run.reordered++;
  else
    c->newest = number;
  if (run.measuring) latency_add(t > due ? t - due : 0);
}

// scan counts the marks in b; a mark that b's end cuts waits in carry. A time
// begins with 0; a '^' before anything else is a byte of the server's own framing.
static int scan(struct conn *c, const char *b, int n, u64 t) {
  const char *p = b, *end = b + n;
  int found = 0;
  if (c->held == 1 && n && b[0] != '0') c->held = 0;
  if (c->held) {
    int more = MARK - c->held < n ? MARK - c->held : n;
    memcpy(c->carry + c->held, b, more);
    c->held += more;
    if (c->held < MARK) return 0;
    delivered(c, c->carry, t);
    c->held = 0, found++, p += more;
  }
  while (p < end && (p = memchr(p, '^', end - p))) {
    if (end - p > 1 && p[1] != '0') {
      p++;
      continue;
    }
    if (end - p < MARK) {
      memcpy(c->carry, p, end - p);
      c->held = end - p;
      break;
    }
    delivered(c, p, t);
    found++, p += MARK;
  }
  return found;
}

// follow keeps the stream's last event id, byte by byte: only while nothing is measured.
static void follow(struct conn *c, const char *b, int n) {
  static const char field[] = "\nid: ";
  for (int i = 0; i < n; i++) {
    if (c->id_match == 5) {
      if (b[i] == '\n')
        c->id_match = 1;
      else if (b[i] != '\r' && c->id_len < (int)sizeof c->id)
        c->id[c->id_len++] = b[i];
    } else if (b[i] == field[c->id_match]) {
      if (++c->id_match == 5) c->id_len = 0;
    } else {
      c->id_match = b[i] == '\n';
    }
  }
}

// stream takes what follows the handshake.
void stream(struct conn *c, const char *b, int n) {
  int found = scan(c, b, n, now());
  run.deliveries += found;
  if (run.follow_ids) follow(c, b, n);
  if (opt.echo > 0 && found) {
    echo_send(c, found);
  } else if (!opt.sse && !found && n >= 2 && n <= 16 && (uint8_t)b[0] == 0x89 && n == 2 + b[1]) {
    send_all(c->fd, frame, ws_frame(frame, b + 2, b[1], 10)); // a ping
  }
}

static void subscribed(struct conn *c) {
  c->state = READY;
  run.live++, run.opening--;
  if (opt.slow && c->index % 100 < opt.slow) {
    c->stopped = true;
    watch_for(c, EPOLL_CTL_DEL, 0);
  }
}

// handshake takes b as far as the subscription's confirmation and hands on the rest.
static void handshake(struct conn *c, const char *b, int n) {
  int take = n < HEAD_ROOM - c->head_len ? n : HEAD_ROOM - c->head_len;
  memcpy(c->head + c->head_len, b, take);
  c->head_len += take;
  c->head[c->head_len] = 0;
  char *body = strstr(c->head, "\r\n\r\n");
  if (!body) {
    if (c->head_len == HEAD_ROOM) lost_conn(c, "its head is too long");
    return;
  }
  body += 4;
  if (c->state == HEAD) {
    if (c->head_len < 12 || strncmp(c->head + 9, opt.sse ? "200" : "101", 3)) {
      lost_conn(c, "the answer is not the expected one");
      return;
    }
    c->state = EXPECT;
    if (opt.say) send_all(c->fd, frame, ws_frame(frame, text, expand(text, sizeof text, opt.say, c->index % opt.channels, 0, 0), 1));
  }
  int have = c->head_len - (body - c->head);
  if (opt.expect && !memmem(body, have, opt.expect, strlen(opt.expect))) {
    if (c->head_len == HEAD_ROOM) lost_conn(c, "the confirmation did not come");
    return;
  }
  char *head = c->head;
  c->head = NULL;
  subscribed(c);
  if (run.follow_ids) c->id_match = 1;
  if (have) stream(c, body, have);
  if (n > take) stream(c, b + take, n - take);
  free(head);
}

void conn_event(struct conn *c) {
  if (c->state == DEAD) return;
  if (c->state == CONNECTING) {
    int error = 0;
    socklen_t len = sizeof error;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    if (error) die("is the server running on that port?", "connect 127.0.0.1:%d: %s", opt.port, strerror(error));
    c->state = HEAD;
    watch_for(c, EPOLL_CTL_MOD, EPOLLIN);
    send_head(c);
    return;
  }
  int n = recv(c->fd, in, READ_ROOM, 0);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0) {
    lost_conn(c, n ? strerror(errno) : "closed by the server");
    return;
  }
  if (c->state != READY) {
    handshake(c, in, n);
    return;
  }
  run.reads++, run.bytes += n;
  stream(c, in, n);
}

// open_all connects every subscriber, at most opt.handshakes at a time.
void open_all(bool resume) {
  resuming = resume;
  u64 end = now() + 30000000000ull;
  for (run.next = 0; run.live < opt.n;) {
    while (run.opening < opt.handshakes && run.next < opt.n) open_one(&conns[run.next], run.next), run.next++;
    pump(10000000);
    if (now() > end || (run.next == opt.n && !run.opening && run.live < opt.n))
      die("has the server enough descriptors (ulimit -n), and does it confirm with what --expect says?", "%d of %d subscribed within 30 s", run.live, opt.n);
  }
}

void close_all(void) {
  for (int i = 0; i < opt.n; i++) {
    if (conns[i].state != DEAD) close(conns[i].fd);
    conns[i].state = DEAD;
  }
  run.live = run.opening = 0;
}
