//go:build ignore

/* Time between "may run" and "runs" of the threads of one process. */
#include "common.h"

struct task_struct {
	int pid, tgid;
	unsigned int __state;
} __attribute__((preserve_access_index));

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u64);
} queued SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 128);
	__type(key, __u32);
	__type(value, struct tally);
} delays SEC(".maps");

static __always_inline void queue(struct task_struct *t)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 thread = t->pid;

	if (t->tgid == observed)
		bpf_map_update_elem(&queued, &thread, &now, BPF_ANY);
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(wakeup, struct task_struct *t)
{
	queue(t);
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(wakeup_new, struct task_struct *t)
{
	queue(t);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(switched, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 thread = next->pid, slot;
	__u64 *at, ns;

	if (preempt || prev->__state == 0)
		queue(prev);
	if (next->tgid != observed)
		return 0;
	at = bpf_map_lookup_elem(&queued, &thread);
	if (!at)
		return 0;
	ns = bpf_ktime_get_ns() - *at;
	slot = slot_of(ns);
	add(&delays, &slot, ns);
	bpf_map_delete_elem(&queued, &thread);
	return 0;
}
