package policy

import (
	"strings"
	"testing"
)

func TestBatchIsValidated(t *testing.T) {
	f := func(cfg RouteConfig, want string) {
		t.Helper()
		err := cfg.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg.Batch, err, want)
		}
	}
	batch := func(b Batch) RouteConfig { return RouteConfig{Cluster: "c", Batch: b} }
	for _, format := range BatchFormats {
		f(batch(Batch{Format: format}), "")
	}
	f(batch(Batch{Format: "kserve", MaxItems: 32, MaxWait: -1, MaxCalls: 1, Headers: []string{"X-Team"}}), "")
	f(batch(Batch{MaxItems: 2}), "batch.format: name what the backend speaks: kserve, openai_completions, openai_embeddings")
	f(batch(Batch{Format: "triton"}), `batch.format: "triton" is none of kserve`)
	f(batch(Batch{Format: "kserve", MaxItems: 1}), "batch.max_items: 1 is not within 2..10000")
	f(batch(Batch{Format: "kserve", MaxCalls: -1}), "batch.max_calls: -1")
	f(batch(Batch{Format: "kserve", MaxQueue: -1}), "batch.max_queue: -1")
	f(batch(Batch{Format: "kserve", MaxBytes: 9 << 20}), "batch.max_bytes: 9437184")
	f(batch(Batch{Format: "kserve", MaxReply: 1}), "batch.max_reply: 1")
	f(batch(Batch{Format: "kserve", MaxWait: -1}), "set max_calls")
	f(batch(Batch{Format: "kserve", MaxWait: 3600e9}), "batch.max_wait: 1h0m0s is above 1m")
	f(batch(Batch{Format: "kserve", Headers: []string{"a b"}}), `batch.headers: "a b"`)
	f(batch(Batch{Format: "kserve", Headers: []string{"Host"}}), `batch.headers: "Host"`)
	f(RouteConfig{Reply: Reply{Status: 200}, Batch: Batch{Format: "kserve"}}, "batch.format: it is for routes that lead to a cluster")
	f(RouteConfig{Cluster: "c", Methods: []string{"GET"}, Batch: Batch{Format: "kserve"}}, "batch.format: only POST")
	f(RouteConfig{Cluster: "c", GRPCWeb: true, Batch: Batch{Format: "kserve"}}, "not with grpc_web")
	f(RouteConfig{Cluster: "c", Record: Record{Namespace: "n"}, Batch: Batch{Format: "kserve"}}, "not with record")
	f(RouteConfig{Cluster: "c", Hold: Hold{Channels: []string{"a"}}, Batch: Batch{Format: "kserve"}}, "not with hold")
}

func TestASharedHeadHasWhatRequestsHaveInCommon(t *testing.T) {
	s := set(t, deps(t), `{"path": "/v1/*", "cluster": "c", "batch": {"format": "kserve", "headers": ["X-Team"]}, "request_headers": {"set": {"Authorization": "ours"}, "add": {"X-Set": "1"}}}`)
	x := exchange(t, "POST /v1/a?b=c\nContent-Type: application/json\nX-Team: red\nAuthorization: theirs\nCookie: a=b\nUser-Agent: u\nX-Team-2: x")
	if v := admit(s, x, 0); v.Action != Forward {
		t.Fatalf("%+v", v)
	}
	got := string(x.Route.AppendSharedHead(nil, x, "upstream"))
	head, _, _ := strings.Cut(got, "\r\n")
	if head != "POST /v1/a?b=c HTTP/1.1" || !strings.HasSuffix(got, "\r\nX-Team: red\r\nContent-Type: application/json\r\nX-Set: 1\r\nAuthorization: ours\r\n\r\n") &&
		!strings.HasSuffix(got, "\r\nX-Team: red\r\nContent-Type: application/json\r\nAuthorization: ours\r\nX-Set: 1\r\n\r\n") {
		t.Errorf("%q", got)
	}
	y := exchange(t, "POST /v1/a?b=c\nx-team: red\naccept: x\ncontent-type: application/json") // as over HTTP/2, by another client
	if v := admit(s, y, 0); v.Action != Forward {
		t.Fatalf("%+v", v)
	}
	if again := string(y.Route.AppendSharedHead(nil, y, "upstream")); again != got || len(y.Fields) < 3 {
		t.Errorf("%q, and of another client %q", got, again)
	}
	for _, other := range []string{"theirs", "Cookie", "User-Agent", "Forwarded", "traceparent", "Via", "Length"} {
		if strings.Contains(got, other) {
			t.Errorf("%s is in %q", other, got)
		}
	}
}
