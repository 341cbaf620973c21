//go:build ignore

/* Page faults of one process (x86 only: other architectures have no such tracepoint). */
#include "common.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} faults SEC(".maps");

SEC("tp_btf/page_fault_user")
int BPF_PROG(fault, unsigned long address, void *regs, unsigned long code)
{
	__u32 zero = 0;
	__u64 *n;

	if (bpf_get_current_pid_tgid() >> 32 != observed)
		return 0;
	n = bpf_map_lookup_elem(&faults, &zero);
	if (n)
		*n += 1;
	return 0;
}
