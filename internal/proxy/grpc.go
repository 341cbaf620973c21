package proxy

import (
	"bytes"
	"strconv"

	"github.com/weir-gateway/weir/internal/http1"
)

// A call of gRPC is answered 200 by HTTP whatever came of it: its own status is in the
// trailers, or in the head of a reply that has nothing else. What counts for a peer's health,
// for retries and for counters is that one, by what it is in HTTP.

// grpcStatuses are the statuses of HTTP for those of gRPC, as google.rpc.Code has them.
// UNIMPLEMENTED is 404 here: which method is called is the client's choice, and says nothing
// of the peer.
var grpcStatuses = [...]int{200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 404, 500, 503, 500, 401}

// grpcHTTP is the status of HTTP for the value of a grpc-status field.
func grpcHTTP(v []byte) int {
	n, err := strconv.ParseUint(string(v), 10, 8)
	if err != nil || int(n) >= len(grpcStatuses) {
		return 500 // UNKNOWN
	}
	return grpcStatuses[n]
}

// grpcHead looks for a status in the head of a reply.
func (x *Exchange) grpcHead(res *http1.Response) {
	if !x.GRPC || res.Status != 200 {
		return
	}
	if v := res.Get("grpc-status"); v != nil {
		x.status = grpcHTTP(v)
	}
}

// mayTryAgain reports whether the peer lets another attempt be made now. One that asks for a
// pause, or for none at all, is passed on to the client, which knows what to do.
func (x *Exchange) mayTryAgain(res *http1.Response) bool {
	v := res.Get("grpc-retry-pushback-ms")
	return !x.GRPC || v == nil || string(v) == "0"
}

// grpcEnd looks for a status in the trailers, and counts the reply.
func (x *Exchange) grpcEnd(trailer []byte) {
	if !x.GRPC {
		return
	}
	for line := range bytes.Lines(trailer) {
		if name, v, ok := bytes.Cut(line, []byte(":")); ok && http1.EqualFold(name, "grpc-status") && x.status == 200 {
			x.status = grpcHTTP(bytes.TrimSpace(v))
		}
	}
	x.tally.codes[min(x.status/100, 5)].Add(1)
}
