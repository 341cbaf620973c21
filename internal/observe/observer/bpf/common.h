/* What the programs share. No vmlinux.h: the few fields that are read are declared here, and
 * CO-RE finds them in the running kernel. */
#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

typedef _Bool bool;

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The process that is observed; set before loading. */
const volatile __u32 observed = 0;

#define SLOTS 72 /* half-octaves of nanoseconds: the last is 48 s and more */

static __always_inline __u32 slot_of(__u64 ns)
{
	__u32 l = 0;
	__u64 v = ns;

	if (ns < 2)
		return 0;
	if (v >> 32) { v >>= 32; l += 32; }
	if (v >> 16) { v >>= 16; l += 16; }
	if (v >> 8) { v >>= 8; l += 8; }
	if (v >> 4) { v >>= 4; l += 4; }
	if (v >> 2) { v >>= 2; l += 2; }
	if (v >> 1) l += 1;
	__u32 s = 2 * l + ((ns >> (l - 1)) & 1);
	return s < SLOTS ? s : SLOTS - 1;
}

struct tally {
	__u64 count;
	__u64 ns;
};

static __always_inline void add(void *map, void *key, __u64 ns)
{
	struct tally one = { 1, ns }, *t = bpf_map_lookup_elem(map, key);

	if (t) {
		__sync_fetch_and_add(&t->count, 1);
		__sync_fetch_and_add(&t->ns, ns);
		return;
	}
	bpf_map_update_elem(map, key, &one, BPF_NOEXIST);
}
