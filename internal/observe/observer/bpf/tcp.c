//go:build ignore

/* Retransmissions, changes of state, and bytes and life of each connection, by local port:
 * these happen in interrupts, where the current process says nothing. */
#include "common.h"

struct sock_common {
	__u16 skc_num;
	__be16 skc_dport;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
} __attribute__((preserve_access_index));

struct tcp_sock {
	__u64 bytes_acked, bytes_received;
} __attribute__((preserve_access_index));

struct sk_buff;

struct pair {
	__u16 local, peer;
};

struct life {
	__u64 at;
};

struct closed {
	__u64 count, ns, sent, received;
};

/* Local ports of the process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u16);
	__type(value, __u8);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct pair);
	__type(value, struct tally);
} retransmits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32); /* old << 8 | new */
	__type(value, struct tally);
} states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct life);
} lives SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 128);
	__type(key, __u32); /* slot of the life in nanoseconds */
	__type(value, struct closed);
} ended SEC(".maps");

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(retransmit, struct sock *sk, struct sk_buff *skb)
{
	__u16 local = sk->__sk_common.skc_num;
	struct pair p = { local, __builtin_bswap16(sk->__sk_common.skc_dport) };

	if (bpf_map_lookup_elem(&ports, &local))
		add(&retransmits, &p, 0);
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(state, struct sock *sk, int from, int to)
{
	__u16 local = sk->__sk_common.skc_num;
	__u32 key = from << 8 | to, slot;
	__u64 id = (__u64)sk, ns;
	struct life l = {}, *was;
	struct closed one = {}, *c;

	/* A closing socket has given its port back already. */
	was = to == 7 ? bpf_map_lookup_elem(&lives, &id) : 0;
	if (!was && !bpf_map_lookup_elem(&ports, &local))
		return 0;
	add(&states, &key, 0);
	if (to == 1) { /* ESTABLISHED */
		l.at = bpf_ktime_get_ns();
		bpf_map_update_elem(&lives, &id, &l, BPF_ANY);
		return 0;
	}
	if (!was) /* not CLOSE, or from before the window */
		return 0;
	ns = bpf_ktime_get_ns() - was->at;
	slot = slot_of(ns);
	one.count = 1;
	one.ns = ns;
	one.sent = BPF_CORE_READ((struct tcp_sock *)sk, bytes_acked);
	one.received = BPF_CORE_READ((struct tcp_sock *)sk, bytes_received);
	bpf_map_delete_elem(&lives, &id);
	c = bpf_map_lookup_elem(&ended, &slot);
	if (!c) {
		bpf_map_update_elem(&ended, &slot, &one, BPF_NOEXIST);
		return 0;
	}
	__sync_fetch_and_add(&c->count, 1);
	__sync_fetch_and_add(&c->ns, ns);
	__sync_fetch_and_add(&c->sent, one.sent);
	__sync_fetch_and_add(&c->received, one.received);
	return 0;
}
