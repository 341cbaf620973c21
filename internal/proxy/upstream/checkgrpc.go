package upstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
)

// checkGRPC checks the peer by gRPC's own protocol (grpc.health.v1.Health/Check).
func checkGRPC(ctx context.Context, conn net.Conn, a Address, h HealthConfig) error {
	dial := func(context.Context, string, string) (net.Conn, error) { return conn, nil } // that one alone
	tr := &http.Transport{Protocols: new(http.Protocols), DialContext: dial, DialTLSContext: dial}
	tr.Protocols.SetHTTP2(true)
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	scheme, host := "http", h.Host
	if _, ok := conn.(*tls.Conn); ok { // over another conn the transport knows HTTP/2 as plaintext's
		scheme = "https"
	}
	if host == "" {
		host = a.host()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, scheme+"://"+host+"/grpc.health.v1.Health/Check", bytes.NewReader(grpcMessage(h.Service)))
	if err != nil {
		return err
	}
	req.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "User-Agent": {"weir-health"}}
	res, err := tr.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	status := res.Trailer.Get("Grpc-Status")
	if status == "" {
		status = res.Header.Get("Grpc-Status") // a reply without a message
	}
	switch {
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("status %d", res.StatusCode)
	case status != "0":
		return fmt.Errorf("grpc-status %q", status)
	}
	return servingGRPC(body)
}

// grpcMessage is a HealthCheckRequest for service: its field 1, a string, behind the five
// bytes that start each message of gRPC.
func grpcMessage(service string) []byte {
	var m []byte
	if service != "" {
		m = append(m, 1<<3|2)
		m = binary.AppendUvarint(m, uint64(len(service)))
		m = append(m, service...)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
}

// The values of HealthCheckResponse.status.
var grpcServing = [...]string{"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"}

var errGRPCReply = errors.New("the reply is not a HealthCheckResponse")

// servingGRPC looks whether a HealthCheckResponse says SERVING: its field 1, an enum.
func servingGRPC(b []byte) error {
	if len(b) < 5 || b[0] != 0 || uint64(binary.BigEndian.Uint32(b[1:])) != uint64(len(b)-5) {
		return errGRPCReply
	}
	status := uint64(0)
	for b = b[5:]; len(b) > 0; {
		if b[0] != 1<<3 {
			return errGRPCReply
		}
		v, n := binary.Uvarint(b[1:])
		if n <= 0 {
			return errGRPCReply
		}
		status, b = v, b[1+n:]
	}
	switch {
	case status == 1:
		return nil
	case status < uint64(len(grpcServing)):
		return errors.New(grpcServing[status])
	}
	return errGRPCReply
}
