//go:build grpccpp

package grpc

import (
	"context"
	"os/exec"
	"testing"

	"github.com/weir-gateway/weir/test/judge"
)

// TestInteropOfCPP has gRPC's C++ run the cases, first without a gateway between it and
// the server (make test-grpc-cpp).
func TestInteropOfCPP(t *testing.T) {
	judge.Need(t, "grpc-cpp")
	cpp := []client{{"gRPC C++", func(ctx context.Context, addr, name, ca string) *exec.Cmd {
		args := []string{addr, name}
		if ca != "" {
			args = append(args, ca)
		}
		return exec.CommandContext(ctx, judge.Path(".cache", "grpc-cpp", "client"), args...)
	}}}
	addr, _ := server(t, "", "")
	all(t, cpp, addr, "")
	throughTheGateway(t, cpp)
}
