// Package grpc has gRPC's own interop clients judge the gateway, before gRPC's own
// interop server: those of grpc-go, and of the C core by its binding for Python and, with
// the tag grpccpp, by C++.
package grpc

import (
	"os"
	"testing"

	"github.com/weir-gateway/weir/test/judge"
)

func TestMain(m *testing.M) { os.Exit(judge.Main(m)) }
