// Clock, payloads, templates, sockets and the latency histogram.
#define _GNU_SOURCE
#include "load.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void die(const char *hint, const char *format, ...) {
  va_list a;
  va_start(a, format);
  fprintf(stderr, "load: ");
  vfprintf(stderr, format, a);
  fprintf(stderr, "\n");
  if (hint) fprintf(stderr, "hint: %s\n", hint);
  exit(1);
}

u64 now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

// hash spreads message numbers, so that sums of different sets differ.
u64 hash(uint32_t number) {
  u64 x = number + 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

int mark(char *o, u64 due, uint32_t number) {
  static const char digits[] = "0123456789abcdef";
  o[0] = '^';
  for (int i = 0; i < 16; i++) o[1 + i] = digits[due >> (60 - 4 * i) & 15];
  for (int i = 0; i < 8; i++) o[17 + i] = digits[number >> (28 - 4 * i) & 15];
  for (int i = MARK; i < opt.payload; i++) o[i] = 'a' + i % 26;
  return opt.payload;
}

// expand writes template with %c the channel, %m the payload and %% a percent sign.
int expand(char *o, int room, const char *template, int channel, u64 due, uint32_t number) {
  char *start = o, *end = o + room - opt.payload - 16;
  for (const char *t = template; *t; t++) {
    if (o >= end) die("shorten it, or lower --batch", "the text made from %.40s… is too long", template);
    if (*t != '%') {
      *o++ = *t;
      continue;
    }
    switch (*++t) {
    case 'c': o += sprintf(o, "%d", channel); break;
    case 'm': o += mark(o, due, number); break;
    case '%': *o++ = '%'; break;
    default: die("%c is the channel, %m the payload, %% a percent sign", "unknown %%%c in %.80s", *t, template);
    }
  }
  *o = 0;
  return o - start;
}

// unescape returns a copy of s with \r, \n and \\ replaced.
char *unescape(const char *s) {
  char *copy = malloc(strlen(s) + 1), *o = copy;
  for (; *s; s++) {
    if (*s != '\\' || !s[1]) {
      *o++ = *s;
      continue;
    }
    s++;
    *o++ = *s == 'r' ? '\r' : *s == 'n' ? '\n' : *s;
  }
  *o = 0;
  return copy;
}

int ws_frame(char *o, const char *payload, int n, int opcode) {
  static const char key[4] = {0x5a, 0x13, 0x7e, 0x29};
  int h = 2;
  o[0] = (char)(0x80 | opcode);
  if (n < 126) {
    o[1] = (char)(0x80 | n);
  } else if (n < 65536) {
    o[1] = (char)(0x80 | 126), o[2] = n >> 8, o[3] = n;
    h = 4;
  } else {
    die("lower --payload", "a WebSocket message of %d bytes", n);
  }
  memcpy(o + h, key, 4);
  h += 4;
  for (int i = 0; i < n; i++) o[h + i] = payload[i] ^ key[i & 3];
  return h + n;
}

// send_all waits where the server does not take the bytes: what is sent here is small.
void send_all(int fd, const char *b, int n) {
  while (n > 0) {
    int sent = send(fd, b, n, MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN) {
      usleep(50);
      continue;
    }
    if (sent < 0) return; // the read side tells
    b += sent, n -= sent;
  }
}

// dial begins a connection. Each 5,000 of them have a source address of their
// own, so that the range of ports suffices. Closing resets: nothing lingers.
int dial(int index, int small_buffer) {
  int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) die("raise the limit of open files (ulimit -n) or take a smaller --n", "socket: %s", strerror(errno));
  struct linger reset = {1, 0};
  setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  if (small_buffer) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small_buffer, sizeof small_buffer);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + index / 5000)};
  if (bind(fd, (void *)&a, sizeof a)) die(NULL, "bind a source address: %s", strerror(errno));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK), a.sin_port = htons(opt.port);
  if (connect(fd, (void *)&a, sizeof a) && errno != EINPROGRESS)
    die("is the server running on that port?", "connect 127.0.0.1:%d: %s", opt.port, strerror(errno));
  return fd;
}

// The histogram: 32 buckets per power of two, 3 % wide.
static u64 buckets[2048];

void latency_add(u64 ns) {
  int e = ns < 64 ? 0 : 63 - __builtin_clzll(ns) - 5;
  int b = e * 32 + (int)(ns >> e);
  buckets[b < 2047 ? b : 2047]++;
  if (ns > run.latency_max) run.latency_max = ns;
}

double latency_quantile(double q) {
  u64 total = 0, seen = 0;
  for (int i = 0; i < 2048; i++) total += buckets[i];
  for (int i = 0; total && i < 2048; i++) {
    seen += buckets[i];
    if (seen < q * total) continue;
    int e = i < 64 ? 0 : i / 32 - 1;
    return (double)((u64)(i - 32 * e) << e) / 1e3;
  }
  return 0;
}

void pump(u64 ns) {
  static struct epoll_event ready[4096];
  struct timespec t = {ns / 1000000000, ns % 1000000000};
  int n = epoll_pwait2(run.ep, ready, 4096, &t, NULL);
  for (int i = 0; i < n; i++) {
    enum role *role = ready[i].data.ptr;
    if (*role == SUBSCRIBER)
      conn_event((struct conn *)role);
    else
      pub_event((struct publisher *)role);
  }
}

void wait_for(double seconds) {
  for (u64 end = now() + (u64)(seconds * 1e9), t; (t = now()) < end;) pump(end - t < 10000000 ? end - t : 10000000);
}
