package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weir-gateway/weir/bench/program"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

const apiKey = "bench-key-of-this-run"

// A server is a running process on CPU 0.
type server struct {
	*program.Process
	addr  string
	admin string // empty: none
}

// start runs a command on CPU 0 and returns when it accepts connections.
func start(ctx context.Context, addr string, args ...string) (*server, error) {
	p, err := program.Options{CPUs: "0"}.Start(ctx, args...)
	if err != nil {
		return nil, err
	}
	if err := p.Ready(program.Accepts(addr)); err != nil {
		return nil, err
	}
	return &server{Process: p, addr: addr}, nil
}

func (b *bench) startWeir(ctx context.Context) (*server, error) {
	addr, err := program.FreeAddr()
	if err != nil {
		return nil, err
	}
	admin, err := program.FreeAddr()
	if err != nil {
		return nil, err
	}
	file := func(name string) string { return quoted(filepath.Join(b.dir, name)) }
	config := fmt.Sprintf(`listen: %q
admin: {listen: %q}
broker: {kind: memory}
eventloop: {engine: %q}
namespaces: [{name: default, anonymous: true}]
auth: {api_keys: [{name: bench, key: %s, publish: ["**"]}]}
log: {level: warn}
tls:
  certificates: [{cert_file: %s, key_file: %s}]
  gm: {certificates: [{sign_cert_file: %s, sign_key_file: %s, enc_cert_file: %s, enc_key_file: %s}]}
`, addr, admin, b.engine, apiKey, quoted(b.cert), quoted(b.key), file("sign.pem"), file("sign.key"), file("enc.pem"), file("enc.key"))
	name := filepath.Join(b.dir, "weir.yaml")
	if err := os.WriteFile(name, []byte(config), 0o600); err != nil {
		return nil, err
	}
	s, err := start(ctx, addr, b.weir, "serve", "--config", name)
	if err != nil {
		return nil, err
	}
	s.admin = admin
	return s, nil
}

func (b *bench) startTongsuo(ctx context.Context, suite *gm.Suite) (*server, error) {
	addr, err := program.FreeAddr()
	if err != nil {
		return nil, err
	}
	file := func(name string) string { return filepath.Join(b.dir, name) }
	args := []string{"s_server", "-accept", addr, "-quiet", "-rev"}
	if suite.Version == gm.VersionTLS13 {
		args = append(args, "-tls1_3", "-ciphersuites", suite.Name, "-groups", "curveSM2", "-sigalgs", "sm2sig_sm3", "-enable_sm_tls13_strict",
			"-cert", file("sign.pem"), "-key", file("sign.key"))
	} else {
		args = append(args, "-enable_ntls", "-cipher", "ECC-SM2-SM4-GCM-SM3", "-sign_cert", file("sign.pem"), "-sign_key", file("sign.key"),
			"-enc_cert", file("enc.pem"), "-enc_key", file("enc.key"))
	}
	return start(ctx, addr, append([]string{b.tongsuo}, args...)...)
}
