// load is a neutral client for push servers: many subscribers over SSE or
// WebSocket, a publisher, echo, reconnect storms, slow readers, idle connections.
// One thread, one epoll, every load bounded. It prints one JSON object: what was
// delivered and lost, latencies, and what the server's processes used meanwhile.
#define _GNU_SOURCE
#include "load.h"
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

struct options opt = {
    .n = 1000, .port = 0, .channels = 1, .handshakes = 256, .publishers = 2, .window = 2, .batch = 1, .payload = 128, .limit = 60,
    .seconds = 2, .warm = 0.5, .settle = 1, .path = "/", .header = "", .pub_header = "", .pub_body = "%m", .pub_item = "", .pub_sep = "", .pub_tail = ""};
struct run run;
struct conn *conns;
struct publisher *pubs;

static const char usage_text[] =
    "usage: load --port P [options]; without --publish and --echo the subscribers are idle\n"
    "  --n N                 subscribers (1000)\n"
    "  --sse                 SSE; otherwise WebSocket\n"
    "  --path T              what to GET; in texts marked T, %c is the channel's number, %m the payload, %% a percent sign\n"
    "  --header H            header lines for it, each ending in \\r\\n\n"
    "  --say T               WebSocket message to send after the handshake\n"
    "  --expect S            subscribed once these bytes came after the handshake\n"
    "  --channels C          subscriber i is on channel i mod C (1)\n"
    "  --handshakes H        at most so many at a time (256)\n"
    "  --publish T           path to POST to\n"
    "  --publish-header H    header lines for it\n"
    "  --publish-body T      its body (%m)\n"
    "  --batch B             messages in one request: body, B items joined by sep, tail, on B channels (1)\n"
    "  --batch-item T, --batch-sep S, --batch-tail T\n"
    "  --publishers P        connections with one request in flight each (2)\n"
    "  --window W            closed loop: at most W publishes not yet delivered to everyone (2)\n"
    "  --rate R              open loop: R publishes a second, timed from when they were due\n"
    "  --payload BYTES       of one message (128)\n"
    "  --echo K              WebSocket echo, K messages in flight per connection\n"
    "  --storm R             R times: reset all connections at once, and back\n"
    "  --missed M            with --storm: M publishes per channel meanwhile, replayed from Last-Event-ID\n"
    "  --slow PERCENT        so many subscribers stop reading once subscribed\n"
    "  --seconds S           measured time (2), after --warm S (0.5); --settle S before idle memory is read (1)\n"
    "  --limit S             give up after that time (60)\n"
    "  --pid P,P             the server's processes\n"
    "  --check               tests the client's own counting and ends\n";

static const struct option names[] = {
    {"n", 1, 0, 'n'}, {"port", 1, 0, 'p'}, {"sse", 0, 0, 'S'}, {"path", 1, 0, 'a'}, {"header", 1, 0, 'H'}, {"say", 1, 0, 'y'},
    {"expect", 1, 0, 'x'}, {"channels", 1, 0, 'c'}, {"handshakes", 1, 0, 'h'}, {"publish", 1, 0, 'P'}, {"publish-header", 1, 0, 'D'},
    {"publish-body", 1, 0, 'B'}, {"batch", 1, 0, 'b'}, {"batch-item", 1, 0, 'i'}, {"batch-sep", 1, 0, 'j'}, {"batch-tail", 1, 0, 't'},
    {"publishers", 1, 0, 'u'}, {"window", 1, 0, 'w'}, {"rate", 1, 0, 'r'}, {"payload", 1, 0, 'l'}, {"echo", 1, 0, 'e'},
    {"storm", 1, 0, 's'}, {"missed", 1, 0, 'm'}, {"slow", 1, 0, 'z'}, {"seconds", 1, 0, 'T'}, {"warm", 1, 0, 'W'}, {"settle", 1, 0, 'E'},
    {"limit", 1, 0, 'L'}, {"pid", 1, 0, 'I'}, {"check", 0, 0, 'K'}, {"help", 0, 0, '?'}, {0}};

static double number(const char *name, const char *s, double least) {
  char *end;
  double v = strtod(s, &end);
  if (*end || end == s || v < least) die(NULL, "--%s: %s is not a number from %g", name, s, least);
  return v;
}

static void check(void);

static void option(int key, const char *name) {
  switch (key) {
  case 'n': opt.n = number(name, optarg, 1); break;
  case 'p': opt.port = number(name, optarg, 1); break;
  case 'S': opt.sse = true; break;
  case 'a': opt.path = optarg; break;
  case 'H': opt.header = unescape(optarg); break;
  case 'y': opt.say = unescape(optarg); break;
  case 'x': opt.expect = unescape(optarg); break;
  case 'c': opt.channels = number(name, optarg, 1); break;
  case 'h': opt.handshakes = number(name, optarg, 1); break;
  case 'P': opt.pub_path = optarg; break;
  case 'D': opt.pub_header = unescape(optarg); break;
  case 'B': opt.pub_body = unescape(optarg); break;
  case 'b': opt.batch = number(name, optarg, 1); break;
  case 'i': opt.pub_item = unescape(optarg); break;
  case 'j': opt.pub_sep = unescape(optarg); break;
  case 't': opt.pub_tail = unescape(optarg); break;
  case 'u': opt.publishers = number(name, optarg, 1); break;
  case 'w': opt.window = number(name, optarg, 1); break;
  case 'r': opt.rate = number(name, optarg, 0); break;
  case 'l': opt.payload = number(name, optarg, MARK); break;
  case 'e': opt.echo = number(name, optarg, 0); break;
  case 's': opt.storm = number(name, optarg, 0); break;
  case 'm': opt.missed = number(name, optarg, 0); break;
  case 'z': opt.slow = number(name, optarg, 0); break;
  case 'T': opt.seconds = number(name, optarg, 0.01); break;
  case 'W': opt.warm = number(name, optarg, 0); break;
  case 'E': opt.settle = number(name, optarg, 0); break;
  case 'L': opt.limit = number(name, optarg, 1); break;
  case 'I': watch(optarg); break;
  case 'K': check(); break;
  default: fputs(usage_text, stderr); exit(2);
  }
}

static void options(int argc, char **argv) {
  for (int key, i = 0; (key = getopt_long(argc, argv, "", names, &i)) != -1;) option(key, names[i].name);
  if (optind < argc || !opt.port) option('?', "");
  if (opt.n % opt.channels) die("choose --n as a multiple of --channels", "%d subscribers do not spread evenly over %d channels", opt.n, opt.channels);
  if (opt.batch > opt.channels || opt.channels % opt.batch) die(NULL, "--batch %d: must divide the %d channels", opt.batch, opt.channels);
  if (opt.batch > 1 && opt.window < opt.batch) die(NULL, "--window %d: smaller than a batch of %d never opens", opt.window, opt.batch);
  if (opt.echo && (opt.sse || opt.pub_path)) die(NULL, "--echo is for WebSocket, without --publish");
  if (opt.missed && (!opt.sse || opt.storm != 1 || !opt.pub_path)) die(NULL, "--missed needs --sse, --publish and --storm 1");
  if (opt.payload >= 65536) die(NULL, "--payload %d: at most 65535", opt.payload);
  if (opt.slow > 99) die(NULL, "--slow %d: somebody has to read", opt.slow);
}

// descriptors raises the soft limit as far as it goes and refuses what does not fit.
static void descriptors(void) {
  struct rlimit r;
  getrlimit(RLIMIT_NOFILE, &r);
  r.rlim_cur = r.rlim_max;
  setrlimit(RLIMIT_NOFILE, &r);
  unsigned long need = opt.n + opt.publishers + 16;
  if (need > r.rlim_cur)
    die("raise the hard limit (ulimit -Hn as root, LimitNOFILE=, --ulimit nofile=) or take fewer subscribers", "%d subscribers need %lu descriptors, the limit is %lu", opt.n, need, (unsigned long)r.rlim_cur);
}

static void too_long(int signal) {
  (void)signal;
  static const char text[] = "load: not done within --limit\nhint: is the server stuck? raise --limit for slow machines\n";
  (void)!write(2, text, sizeof text - 1);
  _exit(1);
}

// The report.
struct outcome {
  struct usage before, after;
  u64 deliveries, published, reads;
  double seconds, connect_s, connect_cpu, storm_s, storm_cpu, idle_cpu;
  long rss_start, rss;
  u64 missing, duplicated, wrong, slow_ended;
};

// judge compares each reader's tally with what its channel, or itself, was sent.
static void judge(struct outcome *o) {
  for (int i = 0; i < opt.n; i++) {
    struct conn *c = &conns[i];
    struct tally *want = opt.echo ? &c->sent : &run.wanted[i % opt.channels];
    if (c->stopped || c->state != READY) continue;
    if (c->got.count < want->count)
      o->missing += want->count - c->got.count;
    else if (c->got.count > want->count)
      o->duplicated += c->got.count - want->count;
    else if (c->got.sum != want->sum)
      o->wrong++;
  }
}

// wake reads what waits for the stopped readers, to see how many of them the server
// has given up: its close stands behind the bytes that it had sent.
static void wake(struct outcome *o) {
  static char sink[1 << 16];
  for (u64 t = now(), moved = t; now() - moved < 300000000ull && now() - t < 5000000000ull; usleep(1000))
    for (int i = 0; i < opt.n; i++) {
      struct conn *c = &conns[i];
      if (!c->stopped) continue;
      int n = recv(c->fd, sink, sizeof sink, MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) continue;
      moved = now();
      if (n > 0) continue;
      o->slow_ended++;
      c->stopped = false, c->state = DEAD;
    }
}

// drain waits for what is still on its way, as long as it moves.
static void drain(void) {
  u64 seen = run.deliveries, moved = now();
  while (run.deliveries < run.expected && now() - moved < 1500000000ull) {
    pump(10000000);
    if (run.deliveries != seen) seen = run.deliveries, moved = now();
  }
  wait_for(0.05); // for what should not come
}

static double us(double seconds, u64 n) { return n ? seconds / n * 1e6 : 0; }

static void report(struct outcome *o) {
  double t = o->seconds ? o->seconds : 1, cpu = o->after.cpu - o->before.cpu;
  u64 d = o->deliveries, per = opt.n;
  double user = o->after.user - o->before.user, sys = o->after.sys - o->before.sys, split = user + sys ? user / (user + sys) : 0;
  printf("{\"subscribers\":%d,\"connect_seconds\":%.4f,\"connect_cpu_us\":%.3f,", opt.n, o->connect_s, us(o->connect_cpu, per));
  printf("\"storm_seconds\":%.4f,\"storm_cpu_us\":%.3f,", o->storm_s, us(o->storm_cpu, per));
  printf("\"rss_start_kb\":%ld,\"rss_kb\":%ld,\"rss_peak_kb\":%ld,\"bytes_per_conn\":%.1f,\"idle_cpu_percent\":%.3f,", o->rss_start, o->rss, o->after.peak_kb, (o->rss - o->rss_start) * 1024.0 / per, o->idle_cpu);
  printf("\"publishes_per_second\":%.2f,\"deliveries_per_second\":%.1f,\"deliveries\":%lu,", o->published / t, d / t, d);
  printf("\"cpu_us\":%.4f,\"cpu_user_us\":%.4f,\"cpu_publish_us\":%.4f,", us(cpu, d), us(cpu * split, d), us(cpu, o->published));
  printf("\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f,\"max_us\":%.1f,", latency_quantile(.5), latency_quantile(.99), latency_quantile(.999), run.latency_max / 1e3);
  printf("\"server_percent\":%.1f,\"client_percent\":%.1f,\"cpu0_percent\":%.1f,\"cpu1_percent\":%.1f,", cpu / t * 100, (o->after.own - o->before.own) / t * 100, (o->after.cores[0] - o->before.cores[0]) / t * 100, (o->after.cores[1] - o->before.cores[1]) / t * 100);
  printf("\"client_us\":%.3f,\"per_read\":%.3f,", us(o->after.own - o->before.own, d), o->reads ? (double)d / o->reads : 0);
  printf("\"missing\":%lu,\"duplicated\":%lu,\"wrong\":%lu,\"reordered\":%lu,\"ended\":%lu,\"failed\":%lu,\"refused\":%lu,\"slow_ended\":%lu}\n", o->missing, o->duplicated, o->wrong, run.reordered, run.ended, run.failed, run.refused, o->slow_ended);
}

static void idle(struct outcome *o) {
  wait_for(opt.settle);
  o->before = measure(true);
  u64 t = now();
  o->rss = o->before.rss_kb;
  wait_for(opt.seconds);
  o->after = measure(true);
  o->seconds = (now() - t) / 1e9;
  o->idle_cpu = (o->after.cpu - o->before.cpu) / o->seconds * 100;
}

// offer publishes what may be published now and returns how long to wait at most.
static u64 offer(u64 t, u64 *due) {
  int fan = opt.n / opt.channels;
  if (opt.rate <= 0) {
    u64 bound = (u64)opt.window * fan;
    while (run.expected - run.deliveries + (u64)opt.batch * fan <= bound && pub_send(now())) {}
    return 10000000;
  }
  u64 gap = 1e9 * opt.batch / opt.rate;
  while (*due <= t && pub_send(*due)) *due += gap;
  return *due <= t ? 200000 : *due - t < 10000000 ? *due - t : 10000000;
}

// load is the measured part of the publishing and echoing modes.
static void load(struct outcome *o) {
  u64 start = now(), from = start + (u64)(opt.warm * 1e9), end = from + (u64)(opt.seconds * 1e9), due = start;
  u64 d0 = 0, p0 = 0, r0 = 0, began = 0;
  if (opt.echo)
    for (int i = 0; i < opt.n; i++) echo_send(&conns[i], opt.echo);
  for (u64 t; (t = now()) < end;) {
    if (!run.measuring && t >= from) {
      run.measuring = true;
      o->before = measure(false);
      d0 = run.deliveries, p0 = run.published, r0 = run.reads, began = now();
    }
    pump(opt.echo ? 10000000 : offer(t, &due));
  }
  o->seconds = (now() - began) / 1e9;
  o->after = measure(true);
  o->deliveries = run.deliveries - d0, o->published = run.published - p0, o->reads = run.reads - r0;
  o->rss = o->after.rss_kb;
  run.measuring = false;
  opt.echo = opt.echo ? -1 : 0; // answered echoes are not sent again
  drain();
}

// publish_all puts count messages on every channel and waits for the answers.
static void publish_all(int count, bool deliver) {
  u64 want = run.answered + (u64)count * opt.channels / opt.batch;
  for (u64 sent = run.answered; run.answered < want;) {
    while (sent < want && pub_send(now())) sent++;
    pump(1000000);
  }
  if (deliver) drain();
}

static void storm(struct outcome *o) {
  double cpu = 0, seconds = 0;
  u64 start = now();
  o->before = measure(false);
  if (opt.missed) run.follow_ids = true;
  for (int r = 0; r < opt.storm; r++) {
    if (opt.missed) publish_all(1, true);
    run.follow_ids = false;
    struct usage a = measure(false);
    u64 t = now();
    close_all();
    if (opt.missed) { // the publishes in between are not the storm's cost
      wait_for(0.3);
      cpu += measure(false).cpu - a.cpu;
      publish_all(opt.missed, false);
      wait_for(0.2);
      a = measure(false), t = now();
    }
    open_all(opt.missed > 0);
    drain();
    seconds += (now() - t) / 1e9 - 0.05;
    wait_for(0.3); // the server's leftovers count too
    o->after = measure(true);
    cpu += o->after.cpu - a.cpu;
  }
  o->seconds = (now() - start) / 1e9, o->rss = o->after.rss_kb;
  o->storm_cpu = cpu / opt.storm, o->storm_s = seconds / opt.storm;
}

static void prepare(void) {
  run.ep = epoll_create1(EPOLL_CLOEXEC);
  conns = calloc(opt.n, sizeof *conns);
  pubs = calloc(opt.publishers, sizeof *pubs);
  run.wanted = calloc(opt.channels, sizeof *run.wanted);
  run.readers = calloc(opt.channels, sizeof *run.readers);
  if (!conns || !pubs || !run.wanted || !run.readers) die(NULL, "out of memory");
  for (int i = 0; i < opt.n; i++)
    if (i % 100 >= opt.slow) run.readers[i % opt.channels]++;
}

int main(int argc, char **argv) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGALRM, too_long);
  options(argc, argv);
  alarm(opt.limit);
  descriptors();
  prepare();
  struct outcome o = {0};
  struct usage start = measure(true);
  u64 t = now();
  run.follow_ids = opt.missed > 0;
  open_all(false);
  o.connect_s = (now() - t) / 1e9;
  o.connect_cpu = measure(false).cpu - start.cpu;
  o.rss_start = start.rss_kb;
  if (opt.pub_path) pub_open();
  wait_for(0.1);
  if (opt.storm)
    storm(&o);
  else if (opt.pub_path || opt.echo)
    load(&o);
  else
    idle(&o);
  judge(&o);
  if (opt.slow) wake(&o);
  report(&o);
  return 0;
}

// check proves that no cutting of the stream changes what is counted.
static void check(void) {
  char text[512];
  opt.payload = 40, opt.echo = 0, opt.sse = true;
  run.wanted = calloc(1, sizeof *run.wanted);
  int n = 0;
  n += sprintf(text + n, "id: a-1\ndata: ");
  n += mark(text + n, 1000, 7);
  n += sprintf(text + n, "\n\n^^"); // a length byte may look like a mark's beginning
  n += mark(text + n, 1000, 9);
  n += sprintf(text + n, "\nid: a-22\ndata: ^x");
  n += mark(text + n, 1000, 8);
  for (int i = 0; i <= n; i++) {
    for (int j = i; j <= n; j++) {
      struct conn c = {.id_match = 1};
      run.follow_ids = true, run.reordered = 0;
      stream(&c, text, i), stream(&c, text + i, j - i), stream(&c, text + j, n - j);
      if (c.got.count != 3 || c.got.sum != hash(7) + hash(8) + hash(9) || run.reordered != 1 || c.id_len != 4 || memcmp(c.id, "a-22", 4))
        die(NULL, "check: cut at %d and %d: %lu messages, id %.*s", i, j, c.got.count, c.id_len, c.id);
    }
  }
  for (u64 v = 1; v < 1000000000000ull; v = v * 5 / 4 + 1) {
    run.latency_max = 0;
    for (int i = 0; i < 1000; i++) latency_add(v);
    double q = latency_quantile(1) * 1e3;
    if (q > v || q < v * 0.96) die(NULL, "check: %lu ns came back as %.0f", v, q);
  }
  puts("ok");
  exit(0);
}
