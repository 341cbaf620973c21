package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// maxAnswer bounds the answer to a publication.
const maxAnswer = 4 << 20

// result is a publication's place, as the server writes it.
type result struct {
	Epoch  string `json:"epoch"`
	Offset uint64 `json:"offset"`
}

func (r result) position() Position { return Position{Epoch: r.Epoch, Offset: r.Offset} }

// A Publication is a message to be published.
type Publication struct {
	Channel string
	// Data is any JSON text.
	Data json.RawMessage
	// Key is the conflation key; empty means none.
	Key string
	// IdempotencyKey makes a repeated call harmless too; empty means that one is made for the attempts
	// of this call.
	IdempotencyKey string
}

// Publish sends p, whose Data is any JSON text, and returns the message's place
// once the server has stored it as the namespace promises. The position is zero
// in a namespace without a log.
//
// It tries again after lost connections and answers that request it, until ctx
// ends or Config.Attempts are used up. All attempts carry one idempotency key, so
// the message is stored once at most; after an error it may or may not be.
func (c *Client) Publish(ctx context.Context, p Publication) (Position, error) {
	body, err := publication{
		Channel: p.Channel, Data: p.Data, Key: p.Key, IdempotencyKey: p.IdempotencyKey,
	}.encode()
	if err != nil {
		return Position{}, fmt.Errorf("publish on %q: %w", p.Channel, err)
	}
	var answer struct {
		Result result `json:"result"`
	}
	if err := c.post(ctx, "api/publish", body, &answer); err != nil {
		return Position{}, fmt.Errorf("publish on %q: %w", p.Channel, err)
	}
	return answer.Result.position(), nil
}

// A Result is what became of a broadcast on one channel.
type Result struct {
	Position Position
	// Err is nil or an *Error.
	Err error
}

// Broadcast sends p on all channels, whatever p.Channel says, and returns one
// result for each, in their order. The error is of the broadcast as a whole.
//
// It tries again as Publish does. A channel that was refused while others were
// not is not tried again.
func (c *Client) Broadcast(ctx context.Context, channels []string, p Publication) ([]Result, error) {
	body, err := publication{
		Channels: channels, Data: p.Data, Key: p.Key, IdempotencyKey: p.IdempotencyKey,
	}.encode()
	if err != nil {
		return nil, fmt.Errorf("broadcast: %w", err)
	}
	var answer struct {
		Result struct {
			Responses []struct {
				Result result     `json:"result"`
				Error  *errorBody `json:"error"`
			} `json:"responses"`
		} `json:"result"`
	}
	if err := c.post(ctx, "api/broadcast", body, &answer); err != nil {
		return nil, fmt.Errorf("broadcast: %w", err)
	}
	if n := len(answer.Result.Responses); n != len(channels) {
		return nil, fmt.Errorf("broadcast: the server answered for %d channels of %d", n, len(channels))
	}
	results := make([]Result, len(channels))
	for i, r := range answer.Result.Responses {
		results[i].Position = r.Result.position()
		if e := r.Error; e != nil {
			results[i].Err = &Error{Status: e.Code, Code: e.Code, Message: e.Message, Hint: e.Hint}
		}
	}
	return results, nil
}

// publication is the body of a request. Channel or Channels is set.
type publication struct {
	Channel        string          `json:"channel,omitempty"`
	Channels       []string        `json:"channels,omitempty"`
	Data           json.RawMessage `json:"data"`
	Key            string          `json:"key,omitempty"`
	IdempotencyKey string          `json:"idempotency_key"`
}

func (p publication) encode() ([]byte, error) {
	if !json.Valid(p.Data) {
		return nil, fmt.Errorf("data is not JSON text: %.40q", p.Data)
	}
	if p.IdempotencyKey == "" {
		p.IdempotencyKey = rand.Text()
	}
	// The payload goes out byte for byte: what publishers sign or hash stays
	// what they wrote. A json.Encoder would compact it.
	data := p.Data
	p.Data = json.RawMessage("0")
	head, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	before, after, _ := bytes.Cut(head, []byte(`"data":0`))
	return bytes.Join([][]byte{before, []byte(`"data":`), data, after}, nil), nil
}

// post sends body until an answer settles it.
func (c *Client) post(ctx context.Context, path string, body []byte, answer any) error {
	b := backoff{min: c.cfg.MinBackoff, max: c.cfg.MaxBackoff}
	for attempt := 1; ; attempt++ {
		err := c.postOnce(ctx, path, body, answer)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return errors.Join(ctx.Err(), err)
		case final(err) || storageFull(err):
			return err
		case attempt >= c.cfg.Attempts:
			return fmt.Errorf("%w (after %d attempts)", err, attempt)
		}
		requested := retryAfter(err)
		if sleepErr := sleep(ctx, b.next(requested, requested > 0)); sleepErr != nil {
			return errors.Join(sleepErr, err)
		}
	}
}

// storageFull: nothing that waiting a few seconds would cure.
func storageFull(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == http.StatusInsufficientStorage
}

func (c *Client) postOnce(ctx context.Context, path string, body []byte, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ConnectTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint(path, nil).String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.cfg.APIKey != "" {
		req.Header.Set("X-API-Key", c.cfg.APIKey)
	}
	if err := c.authorize(ctx, req.Header); err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return refusal(resp)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if err := json.Unmarshal(b, answer); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}
