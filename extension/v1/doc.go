// Package extensionv1 has the messages and the service of weir.extension.v1: what a gateway sends to
// an extension's server, and its answer. docs/howto/extensions.md has a whole server.
package extensionv1

//go:generate protoc -I ../.. --go_out=../.. --go_opt=paths=source_relative --go-grpc_out=../.. --go-grpc_opt=paths=source_relative extension/v1/extension.proto
