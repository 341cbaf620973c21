// What the server's processes use, as the kernel tells it.
#define _GNU_SOURCE
#include "load.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static pid_t watched[64];
static int count;

// watch takes process ids joined by commas.
void watch(const char *pids) {
  for (char *end; *pids && count < 64; pids = *end == ',' ? end + 1 : end) {
    watched[count] = strtol(pids, &end, 10);
    if (end == pids || watched[count] <= 0 || getpgid(watched[count]) < 0) die("--pid takes running processes, joined by commas", "no process %.20s", pids);
    count++;
  }
}

// user_sys reads the process's clock, and fields 14 and 15 of /proc/PID/stat (proc(5)); the name before
// them may hold anything, so count from its closing parenthesis.
static void user_sys(pid_t pid, struct usage *u) {
  char path[64], line[4096];
  sprintf(path, "/proc/%d/stat", pid);
  FILE *f = fopen(path, "r");
  if (!f) die("see the server's log", "the server (process %d) ended", pid);
  line[fread(line, 1, sizeof line - 1, f)] = 0;
  fclose(f);
  char *after = strrchr(line, ')');
  unsigned long user = 0, sys = 0;
  if (!after || sscanf(after + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &sys) != 2) die(NULL, "%s: not as proc(5) says", path);
  // Those are ticks of 10 ms, too coarse for a short round. The process's clock is
  // exact but does not tell the two apart: they only divide it.
  clockid_t clock;
  struct timespec used;
  double total = (double)(user + sys) / sysconf(_SC_CLK_TCK), share = user + sys ? (double)user / (user + sys) : 0;
  if (!clock_getcpuclockid(pid, &clock) && !clock_gettime(clock, &used)) total = used.tv_sec + used.tv_nsec / 1e9;
  u->user += total * share;
  u->sys += total * (1 - share);
}

// lines adds the kB values of a file of "Name: value kB" lines to those asked for.
static void lines(const char *path, const char *names[], long *values[]) {
  char line[256];
  FILE *f = fopen(path, "r");
  if (!f) return;
  while (fgets(line, sizeof line, f))
    for (int i = 0; names[i]; i++)
      if (!strncmp(line, names[i], strlen(names[i]))) *values[i] += atol(line + strlen(names[i]));
  fclose(f);
}

static void memory_of(pid_t pid, struct usage *u) {
  char path[64];
  sprintf(path, "/proc/%d/smaps_rollup", pid);
  lines(path, (const char *[]){"Rss:", "Pss:", NULL}, (long *[]){&u->rss_kb, &u->pss_kb});
  sprintf(path, "/proc/%d/status", pid);
  lines(path, (const char *[]){"VmHWM:", NULL}, (long *[]){&u->peak_kb});
}

static void cores(struct usage *u) {
  char line[512];
  FILE *f = fopen("/proc/stat", "r");
  while (f && fgets(line, sizeof line, f)) {
    int k;
    double user, nice, sys, idle, io, irq, soft;
    if (sscanf(line, "cpu%d %lf %lf %lf %lf %lf %lf %lf", &k, &user, &nice, &sys, &idle, &io, &irq, &soft) == 8 && k < 2)
      u->cores[k] = (user + nice + sys + irq + soft) / sysconf(_SC_CLK_TCK);
  }
  if (f) fclose(f);
}

// measure reads the processor time to the nanosecond from the process clock,
// which also has the threads that ended; /proc/PID/stat splits it by ticks.
struct usage measure(bool memory) {
  struct usage u = {0};
  for (int i = 0; i < count; i++) {
    clockid_t clock;
    struct timespec t;
    user_sys(watched[i], &u);
    if (!clock_getcpuclockid(watched[i], &clock) && !clock_gettime(clock, &t)) u.cpu += t.tv_sec + t.tv_nsec / 1e9;
    if (memory) memory_of(watched[i], &u);
  }
  struct rusage own;
  getrusage(RUSAGE_SELF, &own);
  u.own = own.ru_utime.tv_sec + own.ru_stime.tv_sec + (own.ru_utime.tv_usec + own.ru_stime.tv_usec) / 1e6;
  cores(&u);
  return u;
}
