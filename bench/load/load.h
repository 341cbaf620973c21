// What the parts of the load client share. One thread, so plain globals.
#ifndef LOAD_H
#define LOAD_H
#include <stdbool.h>
#include <stdint.h>

typedef uint64_t u64;

// The options; load.c says what each means.
struct options {
  int n, port, channels, handshakes, publishers, window, batch, payload, echo, storm, missed, slow, limit;
  double rate, seconds, warm, settle;
  bool sse;
  const char *path, *header, *say, *expect, *pub_path, *pub_header, *pub_body, *pub_item, *pub_sep, *pub_tail;
};
extern struct options opt;

// A tally is what was, or should have been, received: how many messages, and the
// sum of their hashed numbers. Equal tallies mean each once, in whatever order.
struct tally {
  u64 count, sum;
};

enum { MARK = 25 }; // ^ + 16 hex digits of time + 8 of number

enum role { SUBSCRIBER, PUBLISHER };
enum state { DEAD, CONNECTING, HEAD, EXPECT, READY };

// A conn is a subscriber (or an echo client).
struct conn {
  enum role role; // first, as in struct publisher: epoll's pointer leads to either
  int fd, index;
  uint8_t state, held; // held: bytes in carry
  bool stopped;        // a slow reader, past its handshake
  char carry[MARK];    // the beginning of a mark that the read cut
  uint32_t newest;     // the highest message number seen
  struct tally got, sent;
  char *head; // handshake, until READY
  int head_len;
  char id[48]; // the last event id, while follow_ids
  int id_len, id_match;
};

struct publisher {
  enum role role;
  int fd, in_flight, len;
  long body; // bytes of the answer's body still to come
  bool up;
  char buf[4096];
};

// State of the whole run.
struct run {
  int ep, live, opening, next;
  bool measuring, follow_ids;
  u64 deliveries, reads, bytes, expected, published, answered, refused, failed, ended, reordered;
  struct tally *wanted; // by channel
  int *readers;         // by channel: subscribers that read
  u64 latency_max;
};
extern struct run run;
extern struct conn *conns;
extern struct publisher *pubs;

// base.c
_Noreturn void die(const char *hint, const char *format, ...);
u64 now(void);
u64 hash(uint32_t number);
int mark(char *o, u64 due, uint32_t number); // a payload of opt.payload bytes
int expand(char *o, int room, const char *template, int channel, u64 due, uint32_t number);
char *unescape(const char *s);
int ws_frame(char *o, const char *payload, int n, int opcode);
void send_all(int fd, const char *b, int n);
int dial(int index, int small_buffer);
void latency_add(u64 ns);
double latency_quantile(double q); // in µs
void pump(u64 ns);                 // serves events for at most ns
void wait_for(double seconds);

// sub.c
void open_all(bool resume);
void conn_event(struct conn *c);
void stream(struct conn *c, const char *b, int n);
void echo_send(struct conn *c, int count);
void close_all(void);

// pub.c
void pub_open(void);
void pub_event(struct publisher *p);
bool pub_send(u64 due);

// proc.c
struct usage {
  double cpu, user, sys; // seconds of the server's processes
  double own;            // seconds of this process
  double cores[2];       // busy seconds of CPU 0 and 1, whoever used them
  long rss_kb, pss_kb, peak_kb;
};
void watch(const char *pids);
struct usage measure(bool memory);
#endif
