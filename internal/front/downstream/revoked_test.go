package downstream_test

import (
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/policy"
)

// revoke puts a revocation in force and ends what it concerns.
func (g *gateway) revoke(subject string) {
	list := g.Auth.Revoked()
	list.Put(auth.Revocation{Kind: auth.RevokedSubject, Name: subject, Until: time.Now().Add(time.Hour)})
	g.push.Review(&access.Review{
		Identity: func(id *auth.Identity) (*auth.Identity, bool) { return id, !list.RevokesIdentity(id, time.Now()) },
		Revoked:  func(user string, t auth.TokenID) bool { return list.Revokes(user, t, time.Now()) },
	}, func(map[string]int) {})
}

// TestARevocationEndsCallsOfGRPC has a stream of a revoked subject end with the status that says why, and
// others stay open.
func TestARevocationEndsCallsOfGRPC(t *testing.T) {
	addr, _, _ := grpcServer(t, echoAll)
	g := grpcGateway(t, settings{routes: []policy.RouteConfig{{Cluster: "main", Auth: policy.Auth{Required: true}}}}, addr)
	cc := g.grpc(t)
	open := func(subject string) (say func() error) {
		t.Helper()
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token(t, subject))
		s, err := cc.NewStream(ctx, bidi, "/a.B/Bidi", callRaw)
		if err != nil {
			t.Fatal(err)
		}
		in, out := []byte("hello"), []byte(nil)
		say = func() error {
			_ = s.SendMsg(&in)
			return s.RecvMsg(&out)
		}
		if err := say(); err != nil {
			t.Fatal(err)
		}
		return func() error { return s.RecvMsg(&out) }
	}
	ann := open("ann")
	_ = open("ben")
	g.revoke("ann")
	if st := status.Convert(ann()); st.Code() != codes.Unauthenticated || st.Message() != "token revoked" {
		t.Errorf("ended with %v", st)
	}
	in, out := []byte("hello"), []byte(nil)
	for subject, want := range map[string]codes.Code{"ann": codes.Unauthenticated, "ben": codes.OK} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token(t, subject))
		if err := cc.Invoke(ctx, "/a.B/Unary", &in, &out, callRaw); status.Code(err) != want {
			t.Errorf("%s: %v", subject, err)
		}
	}
}

// TestARevokedClientWithoutAReplyIsAnswered401 revokes a client whose backend is slow.
func TestARevokedClientWithoutAReplyIsAnswered401(t *testing.T) {
	arrived := make(chan struct{}, 1)
	g := start(t, settings{routes: []policy.RouteConfig{{Cluster: "main", Auth: policy.Auth{Required: true}}}}, backend(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	}))
	w := g.dial()
	w.Send("GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + token(t, "ann") + "\r\n\r\n")
	<-arrived
	g.revoke("ann")
	if res, body := w.Answer("GET"); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}
