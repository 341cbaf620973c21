// Extension is a server that a gateway calls to decide (docs/howto/extensions.md):
//
//	go run ./extension -addr 127.0.0.1:9000
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"strings"
	"syscall"

	"google.golang.org/grpc"

	extensionv1 "github.com/weir-gateway/weir/extension/v1"
)

type server struct {
	extensionv1.UnimplementedExtensionServer
}

// Decide answers one event. An empty verdict allows it.
func (server) Decide(_ context.Context, e *extensionv1.Event) (*extensionv1.Verdict, error) {
	switch e.GetKind() {
	case extensionv1.Kind_KIND_REQUEST: // of a route
		plan := planOf(header(e, "X-Account"))
		if plan == "" {
			return refuse(402, "no plan for this account"), nil
		}
		return &extensionv1.Verdict{
			SetHeaders:    []*extensionv1.Header{{Name: "X-Plan", Value: plan}},
			RemoveHeaders: []string{"X-Account"},
			TtlMs:         10_000, // the same request is not asked about again for 10 seconds
		}, nil
	case extensionv1.Kind_KIND_CONNECT: // a client opens a stream
		if user := header(e, "X-Account"); user != "" {
			return &extensionv1.Verdict{Identity: &extensionv1.Identity{User: user, Subscribe: []string{"account." + user}}}, nil
		}
	case extensionv1.Kind_KIND_PUBLISH:
		if len(e.GetData()) > 1000 {
			return refuse(413, "at most 1000 bytes"), nil
		}
		return &extensionv1.Verdict{Data: bytes.ReplaceAll(e.GetData(), []byte("darn"), []byte("****"))}, nil
	case extensionv1.Kind_KIND_DISCONNECT:
		log.Printf("%s has left", e.GetUser())
	}
	return &extensionv1.Verdict{}, nil
}

func refuse(status uint32, reason string) *extensionv1.Verdict {
	return &extensionv1.Verdict{Refuse: &extensionv1.Refusal{Status: status, Reason: reason}}
}

func header(e *extensionv1.Event, name string) string {
	for _, h := range e.GetHeaders() {
		if strings.EqualFold(h.GetName(), name) {
			return h.GetValue()
		}
	}
	return ""
}

// planOf would look into a database.
func planOf(account string) string { return map[string]string{"ann": "pro", "bob": "free"}[account] }

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	s := grpc.NewServer()
	extensionv1.RegisterExtensionServer(s, server{})
	context.AfterFunc(ctx, s.GracefulStop)
	fmt.Printf("deciding on %s; start weir with the configuration of docs/howto/extensions.md\n", l.Addr())
	if err := s.Serve(l); err != nil {
		log.Fatal(err)
	}
}
