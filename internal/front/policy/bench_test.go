package policy

import "testing"

// What a route costs a request that is only forwarded: match, admit, both heads'
// worth of bookkeeping.
func BenchmarkRequest(b *testing.B) {
	s := set(b, deps(b), `{"cluster": "c"}`)
	x := exchange(b, "GET /api/users/7?x=y\nAccept: */*\nUser-Agent: curl/8\nAccept-Encoding: gzip\nX-Request-Id: 12345678")
	req := *x
	buf := make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		x.Reset()
		x.Method, x.Path, x.Query, x.Host, x.Fields, x.Peer, x.Minor = req.Method, req.Path, req.Query, req.Host, req.Fields, req.Peer, 1
		if s.Match(x).Action != Forward || x.Route.Admit(x, 1).Action != Forward {
			b.Fatal("not forwarded")
		}
		buf = x.Route.AppendRequestHead(buf[:0], x, Framing{Length: none})
		x.Retain()
		buf = x.Route.AppendResponseHead(buf[:0], x, 200, req.Fields, Framing{Length: 3})
		x.Done(Outcome{Status: 200})
	}
}
