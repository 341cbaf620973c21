// Package callout calls a server of weir.extension.v1.Extension as an extension.Hook.
//
//	hook, closeIt, err := callout.Dial(cfg)
//
// Each event is a unary call. They share one connection of HTTP/2 to each address, on which the
// calls under way do not wait for each other; a call that is cancelled is a reset stream there.
package callout

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	extensionv1 "github.com/weir-gateway/weir/extension/v1"
	"github.com/weir-gateway/weir/internal/front/extension"
)

// A Hook calls a server. Any goroutine.
type Hook struct{ client extensionv1.ExtensionClient }

var _ extension.Hook = (*Hook)(nil)

// Dial returns a Hook for a valid cfg, and what closes it. It reads cfg's files, but does not
// wait for a connection: calls do, within their time.
func Dial(cfg extension.Config) (extension.Hook, func(), error) {
	creds, err := transport(cfg)
	if err != nil {
		return nil, nil, err
	}
	conn, err := grpc.NewClient(cfg.Target,
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(cfg.MaxMessage), grpc.MaxCallRecvMsgSize(cfg.MaxMessage)),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: time.Minute, Timeout: 10 * time.Second}),
		grpc.WithUserAgent("weir"),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("target: %w", err)
	}
	return &Hook{extensionv1.NewExtensionClient(conn)}, func() { _ = conn.Close() }, nil
}

// transport returns how the server is reached.
func transport(cfg extension.Config) (credentials.TransportCredentials, error) {
	if !cfg.TLS.Enabled {
		return insecure.NewCredentials(), nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cfg.TLS.ServerName}
	if t.ServerName == "" {
		if host, _, err := net.SplitHostPort(strings.TrimPrefix(cfg.Target, "dns:///")); err == nil {
			t.ServerName = host
		}
	}
	if f := cfg.TLS.CAFile; f != "" {
		pem, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("tls.ca_file: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.ca_file: %s has no certificate in PEM", f)
		}
	}
	if cfg.TLS.CertFile != "" {
		c, err := tls.LoadX509KeyPair(cfg.TLS.CertFile, cfg.TLS.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("tls.cert_file: %w", err)
		}
		t.Certificates = []tls.Certificate{c}
	}
	return credentials.NewTLS(t), nil
}

// Decide implements extension.Hook.
func (h *Hook) Decide(ctx context.Context, e *extension.Event) (*extension.Verdict, error) {
	v, err := h.client.Decide(ctx, eventOf(e))
	if err != nil {
		switch status.Code(err) {
		case codes.ResourceExhausted:
			return nil, fmt.Errorf("%w (max_message bounds events and verdicts)", err)
		case codes.DeadlineExceeded: // the server may notice before we do
			return nil, fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
		}
		return nil, err
	}
	return verdictOf(v)
}

// eventOf writes e as a message.
func eventOf(e *extension.Event) *extensionv1.Event {
	m := &extensionv1.Event{
		Kind: extensionv1.Kind(e.Kind), Route: text(e.Route), Protocol: e.Protocol, Connection: e.Connection, User: text(e.User),
		Method: text(e.Method), Scheme: e.Scheme, Host: text(e.Host), Path: text(e.Path), Status: uint32(max(e.Status, 0)), Data: e.Data,
	}
	if e.Client.IsValid() {
		m.Client = e.Client.String()
	}
	for _, ch := range e.Channels {
		m.Channels = append(m.Channels, text(ch))
	}
	for _, f := range e.Headers {
		m.Headers = append(m.Headers, &extensionv1.Header{Name: f.Name, Value: text(f.Value)})
	}
	return m
}

// text makes s what a string of protobuf may be.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// verdictOf reads a message.
func verdictOf(m *extensionv1.Verdict) (*extension.Verdict, error) {
	v := &extension.Verdict{Remove: m.GetRemoveHeaders(), Set: fieldsOf(m.GetSetHeaders()), TTL: time.Duration(m.GetTtlMs()) * time.Millisecond}
	if r := m.GetRefuse(); r != nil {
		if r.GetStatus() > 999 {
			return nil, errors.New("refuse.status is not one of HTTP")
		}
		v.Refuse = &extension.Refusal{Status: int(r.GetStatus()), Reason: r.GetReason(), Body: r.GetBody(), Headers: fieldsOf(r.GetHeaders())}
	}
	if id := m.GetIdentity(); id != nil {
		v.Identity = &extension.Identity{User: id.GetUser(), Subscribe: id.GetSubscribe(), Publish: id.GetPublish()}
		if s := id.GetExpires(); s != 0 {
			v.Identity.Expires = time.Unix(s, 0)
		}
	}
	if m.Data != nil {
		v.Data = m.Data
	}
	return v, nil
}

func fieldsOf(list []*extensionv1.Header) (out []extension.Field) {
	for _, h := range list {
		out = append(out, extension.Field{Name: h.GetName(), Value: h.GetValue()})
	}
	return out
}
