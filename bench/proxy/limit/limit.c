// limit is what this machine's sockets allow an HTTP server or proxy: one thread,
// one epoll, nothing parsed.
//
//   limit PORT        answers every request with the same 13 bytes; a request is
//                     whatever ends with an empty line
//   limit PORT PEER   relays: each client connection has one connection to port
//                     PEER, and what one side sends goes to the other as it is,
//                     two receives and two sends per request
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_FD = 65536, EVENTS = 512, BUFFER = 1 << 16, BATCH = 1024 };

static const char reply[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";

static int other[MAX_FD]; // the other side of a relayed descriptor, -1: none
static int matched[MAX_FD]; // how much of the empty line the last read ended in
static char in[BUFFER], out[BATCH * sizeof reply];

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static struct sockaddr_in loopback(int port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}

static void drop(int fd) {
  int o = other[fd];
  other[fd] = -1;
  close(fd);
  if (o >= 0) {
    other[o] = -1;
    close(o);
  }
}

static void watch(int ep, int fd) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
  if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e)) fail("epoll_ctl");
  matched[fd] = 0;
}

static void take(int ep, int listener, int peer) {
  int fd;
  while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
    if (fd >= MAX_FD) {
      close(fd);
      continue;
    }
    other[fd] = -1;
    if (peer) {
      struct sockaddr_in a = loopback(peer);
      int up = socket(AF_INET, SOCK_STREAM, 0);
      if (up < 0 || up >= MAX_FD || connect(up, (void *)&a, sizeof a)) {
        if (up >= 0) close(up);
        close(fd);
        continue;
      }
      other[fd] = up;
      other[up] = fd;
      watch(ep, up);
    }
    watch(ep, fd);
  }
}

// requests counts the empty lines in what came, also over the border of two reads.
static int requests(int fd, ssize_t n) {
  static const char end[] = "\r\n\r\n";
  int count = 0, m = matched[fd];
  for (ssize_t i = 0; i < n; i++) {
    m = in[i] == end[m] ? m + 1 : in[i] == '\r';
    if (m == 4) count++, m = 0;
  }
  matched[fd] = m;
  return count;
}

static void serve(int fd) {
  ssize_t n = recv(fd, in, sizeof in, MSG_DONTWAIT);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0) {
    drop(fd);
    return;
  }
  if (other[fd] >= 0) {
    if (send(other[fd], in, n, MSG_NOSIGNAL) < n) drop(fd);
    return;
  }
  for (int count = requests(fd, n); count > 0; count -= BATCH) {
    size_t size = (count < BATCH ? count : BATCH) * (sizeof reply - 1);
    if (send(fd, out, size, MSG_NOSIGNAL) < (ssize_t)size) {
      drop(fd);
      return;
    }
  }
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: limit PORT [PEER]\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  for (int i = 0; i < BATCH; i++) memcpy(out + i * (sizeof reply - 1), reply, sizeof reply - 1);
  int peer = argc > 2 ? atoi(argv[2]) : 0, one = 1;
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), ep = epoll_create1(0);
  struct sockaddr_in a = loopback(atoi(argv[1]));
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, (void *)&a, sizeof a) || listen(listener, 4096)) fail("listen");
  struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS];
  if (epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e)) fail("epoll_ctl");
  for (;;) {
    int n = epoll_wait(ep, events, EVENTS, -1);
    for (int i = 0; i < n; i++) {
      if (events[i].data.fd == listener)
        take(ep, listener, peer);
      else
        serve(events[i].data.fd);
    }
  }
}
