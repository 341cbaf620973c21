package extensionv1_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	extensionv1 "github.com/weir-gateway/weir/extension/v1"
)

// readOnly refuses every publication but those of the user "editor".
type readOnly struct {
	extensionv1.UnimplementedExtensionServer
}

func (readOnly) Decide(_ context.Context, e *extensionv1.Event) (*extensionv1.Verdict, error) {
	if e.GetKind() == extensionv1.Kind_KIND_PUBLISH && e.GetUser() != "editor" {
		return &extensionv1.Verdict{Refuse: &extensionv1.Refusal{Status: 403, Reason: "editors only"}}, nil
	}
	return &extensionv1.Verdict{}, nil // allowed
}

// A server that decides who may publish, and two of the calls that a gateway makes.
func Example() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	s := grpc.NewServer()
	extensionv1.RegisterExtensionServer(s, readOnly{})
	go func() { _ = s.Serve(l) }()
	defer s.Stop()

	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	gateway := extensionv1.NewExtensionClient(conn)
	for _, user := range []string{"editor", "reader"} {
		v, err := gateway.Decide(context.Background(), &extensionv1.Event{Kind: extensionv1.Kind_KIND_PUBLISH, User: user})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %q\n", user, v.GetRefuse().GetReason())
	}
	// Output:
	// editor: ""
	// reader: "editors only"
}
