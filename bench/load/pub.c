// Publishers: keep-alive HTTP connections with one request in flight each.
#define _GNU_SOURCE
#include "load.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

enum { ROOM = 1 << 20 };
static char body[ROOM], request[ROOM + 4096], path[1 << 17];
static uint32_t number;
static int channel; // the next to publish on

void pub_open(void) {
  for (int i = 0; i < opt.publishers; i++) {
    struct publisher *p = &pubs[i];
    *p = (struct publisher){.role = PUBLISHER, .fd = dial(i, 0), .up = true};
    struct pollfd wait = {.fd = p->fd, .events = POLLOUT};
    int error = 0;
    socklen_t len = sizeof error;
    if (poll(&wait, 1, 5000) != 1) die("is the server busy with something else?", "a publisher could not connect within 5 s");
    getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    if (error) die("is the server running on that port?", "connect a publisher: %s", strerror(error));
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = p};
    epoll_ctl(run.ep, EPOLL_CTL_ADD, p->fd, &e);
  }
}

// answer_head looks at a complete head in p->buf.
static void answer_head(struct publisher *p, int head_len) {
  p->buf[head_len - 1] = 0;
  char *length = strcasestr(p->buf, "\r\ncontent-length:");
  if (!length) die("the load client reads only answers with Content-Length", "publish answered: %.200s", p->buf);
  if (p->buf[9] != '2' && !run.refused++) fprintf(stderr, "load: publish refused: %.200s\n", p->buf);
  p->body = atol(length + 17);
  p->in_flight--;
  run.answered++;
}

void pub_event(struct publisher *p) {
  int n = recv(p->fd, p->buf + p->len, sizeof p->buf - 1 - p->len, 0);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0) die("does the server limit the requests of a connection?", "a publisher's connection ended: %s", n ? strerror(errno) : "closed by the server");
  p->len += n;
  for (;;) {
    int skip = p->body < p->len ? p->body : p->len;
    p->body -= skip, p->len -= skip;
    memmove(p->buf, p->buf + skip, p->len);
    p->buf[p->len] = 0;
    if (p->body || !p->len) return;
    char *end = strstr(p->buf, "\r\n\r\n");
    if (!end && p->len == sizeof p->buf - 1) die(NULL, "a publish answer's head is too long");
    if (!end) return;
    int head_len = end + 4 - p->buf;
    answer_head(p, head_len);
    p->len -= head_len;
    memmove(p->buf, p->buf + head_len, p->len);
  }
}

// want adds the message to what the channel's subscribers are to receive.
static void want(int ch) {
  run.wanted[ch].count++, run.wanted[ch].sum += hash(number);
  run.expected += run.readers[ch];
  run.published++;
}

static int compose(u64 due, int first) {
  int n = expand(body, ROOM, opt.pub_body, first, due, number);
  want(first);
  for (int i = 1; i <= opt.batch && opt.batch > 1; i++) {
    int ch = (first + i - 1) % opt.channels;
    if (i > 1) {
      n += expand(body + n, ROOM - n, opt.pub_sep, ch, due, number);
      want(ch);
    }
    n += expand(body + n, ROOM - n, opt.pub_item, ch, due, number);
  }
  if (opt.batch > 1) n += expand(body + n, ROOM - n, opt.pub_tail, first, due, number);
  return n;
}

// pub_send publishes opt.batch messages that were due then, if a publisher is free.
bool pub_send(u64 due) {
  static int turn;
  struct publisher *p = NULL;
  for (int i = 0; i < opt.publishers && !p; i++) {
    struct publisher *q = &pubs[turn++ % opt.publishers];
    if (!q->in_flight) p = q;
  }
  if (!p) return false;
  number++;
  int first = channel;
  channel = (channel + opt.batch) % opt.channels;
  int len = compose(due, first);
  expand(path, sizeof path, opt.pub_path, first, due, number);
  int n = snprintf(request, 4096, "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%sContent-Length: %d\r\n\r\n", path, opt.port, opt.pub_header, len);
  if (n >= 4096) die(NULL, "the head of a publish is too long");
  memcpy(request + n, body, len);
  p->in_flight++;
  send_all(p->fd, request, n + len);
  return true;
}
