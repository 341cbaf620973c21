// limit is what the sockets of this machine allow: one thread, one epoll, and as
// close to nothing as a push server can do. Weir's costs are read as multiples of
// it. It is no product: it trusts its client, keeps no queue (a full socket loses
// the message, which the load client notices) and parses only what routes.
//
//   GET  /ws/K     with "Upgrade:"  subscribes to channel K; frames received are echoed
//   GET  /sse/K    subscribes to channel K; Last-Event-ID replays, see HISTORY
//   POST /pub/K    sends the body to every subscriber of channel K
//   POST /pub/K+B  sends it to the channels K, K+1, … K+B-1
//
// usage: limit PORT [HISTORY [LOSE]]
//   HISTORY  messages kept per channel for replay; 0, the default, keeps none
//   LOSE     drops every LOSE-th delivery, to prove that the client notices; 0 none
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_FD = 65536, MAX_CHANNEL = 65536, MAX_BODY = 65536, READ_BUFFER = 1 << 18 };
enum kind { HTTP, WS, SSE };

// A peer is an accepted socket; its descriptor is its index in peers.
struct peer {
  enum kind kind;
  int channel;
  int slot; // its place in the channel's list
};

// A kept message is its SSE frame.
struct kept {
  char *bytes;
  int len;
};

struct channel {
  int *fds, n, cap;
  unsigned last;     // id of the newest message
  struct kept *ring; // the newest `history` messages, by id modulo history
};

static struct peer peers[MAX_FD];
static struct channel channels[MAX_CHANNEL];
static char in[READ_BUFFER + 1], out[READ_BUFFER + READ_BUFFER / 8], ws_frame[MAX_BODY + 16], sse_frame[MAX_BODY + 64];
static int ep, history;
static unsigned lose, sends;

// The client sends the sample key of RFC 6455 §1.3, so the answer is a constant.
static const char switching[] = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
static const char streaming[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n\r\n";
static const char accepted[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

static void put(int fd, const char *b, size_t n) { (void)!send(fd, b, n, MSG_NOSIGNAL | MSG_DONTWAIT); }

static void subscribe(int fd, enum kind kind, int k) {
  struct channel *c = &channels[k];
  if (c->n == c->cap) {
    c->cap = c->cap ? 2 * c->cap : 4;
    c->fds = realloc(c->fds, c->cap * sizeof *c->fds);
    if (!c->fds) exit(1);
  }
  peers[fd] = (struct peer){kind, k, c->n};
  c->fds[c->n++] = fd;
}

static void hang_up(int fd) {
  struct peer *p = &peers[fd];
  if (p->kind != HTTP) {
    struct channel *c = &channels[p->channel];
    int moved = c->fds[--c->n];
    c->fds[p->slot] = moved;
    peers[moved].slot = p->slot;
  }
  close(fd);
}

// ws_head writes the head of an unmasked text frame and returns its length.
static int ws_head(char *o, int n) {
  o[0] = (char)0x81;
  if (n < 126) {
    o[1] = n;
    return 2;
  }
  o[1] = 126, o[2] = n >> 8, o[3] = n;
  return 4;
}

static void unmask(char *b, int n, const char *key) {
  uint32_t k;
  memcpy(&k, key, 4);
  uint64_t kk = (uint64_t)k << 32 | k, v;
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    memcpy(&v, b + i, 8);
    v ^= kk;
    memcpy(b + i, &v, 8);
  }
  for (; i < n; i++) b[i] ^= key[i & 3];
}

// echo answers all frames of one read with one send. A frame cut by the end of
// the read is lost; at 128 bytes on loopback there is none.
static void echo(int fd, int n) {
  int i = 0, o = 0;
  while (n - i >= 6) {
    char *f = in + i;
    int len = f[1] & 127, head = 2;
    if ((f[0] & 15) == 8) {
      hang_up(fd);
      return;
    }
    if (len == 126) len = (uint8_t)f[2] << 8 | (uint8_t)f[3], head = 4;
    if (n - i < head + 4 + len) break;
    unmask(f + head + 4, len, f + head);
    if ((f[0] & 15) == 1 || (f[0] & 15) == 2) {
      o += ws_head(out + o, len);
      memcpy(out + o, f + head + 4, len);
      o += len;
    }
    i += head + 4 + len;
  }
  if (o) put(fd, out, o);
}

static void keep(struct channel *c, const char *frame, int n) {
  if (!c->ring) c->ring = calloc(history, sizeof *c->ring);
  struct kept *k = &c->ring[c->last % history];
  k->bytes = realloc(k->bytes, n);
  if (!k->bytes) exit(1);
  memcpy(k->bytes, frame, n);
  k->len = n;
}

// publish frames the body once per wire format and sends it, one send each.
static void publish(struct channel *c, const char *body, int n) {
  c->last++;
  int w = ws_head(ws_frame, n);
  memcpy(ws_frame + w, body, n);
  int s = sprintf(sse_frame, "id: %u\ndata: ", c->last);
  memcpy(sse_frame + s, body, n);
  memcpy(sse_frame + s + n, "\n\n", 2);
  if (history) keep(c, sse_frame, s + n + 2);
  for (int i = 0; i < c->n; i++) {
    int fd = c->fds[i];
    if (lose && ++sends % lose == 0) continue;
    if (peers[fd].kind == WS)
      put(fd, ws_frame, w + n);
    else
      put(fd, sse_frame, s + n + 2);
  }
}

// stream answers a new SSE subscriber: head, what it missed, or where it stands.
static void stream(int fd, int k) {
  struct channel *c = &channels[k];
  char *field = strcasestr(in, "last-event-id: ");
  unsigned from = field ? strtoul(field + 15, NULL, 10) : c->last;
  if (!history || c->last - from > (unsigned)history) from = c->last;
  int o = sizeof streaming - 1;
  memcpy(out, streaming, o);
  if (from == c->last) o += sprintf(out + o, "id: %u\n\n", c->last);
  for (unsigned id = from + 1; from != c->last && id <= c->last; id++) {
    struct kept *m = &c->ring[id % history];
    if (o + m->len > (int)sizeof out) break;
    memcpy(out + o, m->bytes, m->len);
    o += m->len;
  }
  subscribe(fd, SSE, k);
  put(fd, out, o);
}

static int channel_of(const char *digits) {
  int k = atoi(digits);
  return k >= 0 && k < MAX_CHANNEL ? k : 0;
}

// request serves one request, which arrives whole: so small a client's does.
static void request(int fd, int n) {
  in[n] = 0;
  char *end = strstr(in, "\r\n\r\n");
  if (!end) return;
  if (!strncmp(in, "POST /pub/", 10)) {
    char *plus = strpbrk(in + 10, "+ ");
    int k = channel_of(in + 10), many = plus && *plus == '+' ? atoi(plus + 1) : 1, len = n - (end + 4 - in);
    if (len > MAX_BODY) len = MAX_BODY;
    for (int i = k; i < k + many && i < MAX_CHANNEL; i++) publish(&channels[i], end + 4, len);
    put(fd, accepted, sizeof accepted - 1);
  } else if (!strncmp(in, "GET /sse/", 9)) {
    stream(fd, channel_of(in + 9));
  } else if (!strncmp(in, "GET /ws/", 8)) {
    subscribe(fd, WS, channel_of(in + 8));
    put(fd, switching, sizeof switching - 1);
  } else {
    hang_up(fd);
  }
}

static void readable(int fd) {
  int n = recv(fd, in, READ_BUFFER, 0);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0)
    hang_up(fd);
  else if (peers[fd].kind == WS)
    echo(fd, n);
  else if (peers[fd].kind == HTTP)
    request(fd, n);
}

static void accept_some(int listener) {
  for (int i = 0; i < 64; i++) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    if (fd >= MAX_FD) {
      close(fd);
      continue;
    }
    peers[fd].kind = HTTP;
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
  }
}

static int listen_on(int port) {
  int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(fd, (void *)&a, sizeof a) || listen(fd, 4096)) {
    fprintf(stderr, "limit: listen 127.0.0.1:%d: %s\nhint: is another server using the port?\n", port, strerror(errno));
    exit(1);
  }
  return fd;
}

int main(int argc, char **argv) {
  if (argc < 2 || argc > 4) {
    fprintf(stderr, "usage: limit PORT [HISTORY [LOSE]]\n");
    return 2;
  }
  history = argc > 2 ? atoi(argv[2]) : 0;
  lose = argc > 3 ? atoi(argv[3]) : 0;
  signal(SIGPIPE, SIG_IGN);
  struct rlimit r;
  getrlimit(RLIMIT_NOFILE, &r);
  r.rlim_cur = r.rlim_max;
  setrlimit(RLIMIT_NOFILE, &r);
  int listener = listen_on(atoi(argv[1]));
  ep = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, ready[1024];
  epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e);
  for (;;) {
    int n = epoll_wait(ep, ready, 1024, -1);
    for (int i = 0; i < n; i++) {
      if (ready[i].data.fd == listener)
        accept_some(listener);
      else
        readable(ready[i].data.fd);
    }
  }
}
