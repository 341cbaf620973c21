package nats

import (
	"errors"
	"fmt"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// An apiError is JetStream's answer to what it cannot do.
type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string { return fmt.Sprintf("nats: %s (%d)", e.Description, e.ErrCode) }

// Is reports whether the cause may pass: without a leader, for example.
func (e *apiError) Is(target error) bool {
	return target == hub.ErrUnavailable && e.Code == 503
}

// JetStream's error codes that mean something here.
const (
	codeNotAvailable     = 10008
	codeAccountResources = 10002
	codeInsufficient     = 10023
	codeMemoryResources  = 10028
	codeNoMessage        = 10037
	codeStorageResources = 10047
	codeMessageTooLarge  = 10054
	codeHeaderTooLarge   = 10097
	codeNameInUse        = 10058
	codeStreamNotFound   = 10059
	codeOtherStream      = 10060
	codeReplicas         = 10074
	codeNotEnabled       = 10076
	codeStoreFailed      = 10077
	codeTooMany          = 10167
	codeNotForAccount    = 10039
	codeNoPeers          = 10005
	codeKeyInProcess     = 10158
	codeNotTheLastID     = 10070
	codeNotTheLast       = 10071
	codeNotTheLastFixed  = 10164
)

// sentinel returns e as the hub error that a publisher can act on.
func (e *apiError) sentinel() error {
	switch e.ErrCode {
	case codeAccountResources, codeInsufficient, codeMemoryResources, codeStorageResources, codeStoreFailed:
		return fmt.Errorf("%w: %w", hub.ErrStorageFull, e)
	case codeMessageTooLarge, codeHeaderTooLarge:
		return fmt.Errorf("%w: %w", hub.ErrTooLarge, e)
	case codeNotTheLastID, codeNotTheLast, codeNotTheLastFixed:
		return fmt.Errorf("%w: %w", hub.ErrConflict, e)
	case codeTooMany:
		return fmt.Errorf("%w: %w", hub.ErrOverloaded, e)
	default:
		return fmt.Errorf("%w: %w", hub.ErrUnavailable, e)
	}
}

func isCode(err error, code int) bool {
	var e *apiError
	return errors.As(err, &e) && e.ErrCode == code
}

// publishError translates what the client library says when it cannot send.
func publishError(err error) error {
	if errors.Is(err, natsgo.ErrMaxPayload) {
		return fmt.Errorf("%w: the NATS server's max_payload is smaller: %w", hub.ErrTooLarge, err)
	}
	return fmt.Errorf("%w: %w", hub.ErrUnavailable, err)
}
