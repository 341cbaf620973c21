//go:build ignore

/* Time of every system call of one process, and its waits for futexes by address. */
#include "common.h"

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long di, si;
} __attribute__((preserve_access_index));
#define FIRST(r) ((r)->di)
#define SECOND(r) ((r)->si)
#else
struct pt_regs {
	__u64 regs[31];
} __attribute__((preserve_access_index));
#define FIRST(r) ((r)->regs[0])
#define SECOND(r) ((r)->regs[1])
#endif

const volatile long futex_call = -1; /* its number, which differs by architecture */

struct begun {
	__u64 at;
	__u64 lock; /* of a futex that is waited for, else 0 */
	__u32 call;
};

struct wait_key {
	__u64 lock;
	__u64 thread;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct begun);
} under_way SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32); /* call << 8 | slot */
	__type(value, struct tally);
} calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct wait_key);
	__type(value, struct tally);
} waits SEC(".maps");

SEC("tp_btf/sys_enter")
int BPF_PROG(enter, struct pt_regs *regs, long id)
{
	__u64 both = bpf_get_current_pid_tgid();
	__u32 thread = both;
	struct begun b = {};

	if (both >> 32 != observed)
		return 0;
	b.at = bpf_ktime_get_ns();
	b.call = id;
	if (id == futex_call) {
		__u32 op = SECOND(regs) & 0x7f;
		/* FUTEX_WAIT, LOCK_PI, WAIT_BITSET, LOCK_PI2 */
		if (op == 0 || op == 6 || op == 9 || op == 13)
			b.lock = FIRST(regs);
	}
	bpf_map_update_elem(&under_way, &thread, &b, BPF_ANY);
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(leave, struct pt_regs *regs, long ret)
{
	__u64 both = bpf_get_current_pid_tgid(), ns;
	__u32 thread = both, key;
	struct begun *b;

	if (both >> 32 != observed)
		return 0;
	b = bpf_map_lookup_elem(&under_way, &thread);
	if (!b)
		return 0;
	ns = bpf_ktime_get_ns() - b->at;
	key = b->call << 8 | slot_of(ns);
	add(&calls, &key, ns);
	if (b->lock) {
		struct wait_key w = { b->lock, thread };
		add(&waits, &w, ns);
	}
	bpf_map_delete_elem(&under_way, &thread);
	return 0;
}
