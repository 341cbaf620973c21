package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weir-gateway/weir/client"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// defaultURL is where `weir serve` listens by default.
const defaultURL = "http://127.0.0.1:8000"

// addClient defines the flags by which a command finds its server.
func addClient(fs *pflag.FlagSet) {
	fs.String("url", defaultURL, "the server's `address` (env WEIR_URL)")
	fs.String("token", "", "`JWT` to present (env WEIR_TOKEN)")
}

// clientConfig reads what addClient defined.
func clientConfig(fs *pflag.FlagSet) client.Config {
	return client.Config{
		URL:   flagOrEnv(fs, "url", "WEIR_URL"),
		Token: flagOrEnv(fs, "token", "WEIR_TOKEN"),
	}
}

func newClient(cfg client.Config) (*client.Client, error) {
	c, err := client.New(cfg)
	if err != nil {
		return nil, &usageError{err}
	}
	return c, nil
}

type pubFlags struct {
	key, idempotencyKey string
	text                bool
	attempts            int
}

func newPub() *cobra.Command {
	var f pubFlags
	cmd := &cobra.Command{
		Use:   "pub CHANNEL DATA|-",
		Short: "Publish a message, or every line of standard input",
		Long: `Pub publishes DATA on CHANNEL and prints the message's position, or "-" if the
namespace keeps no log. With - in place of DATA every non-empty line of standard
input is a message.

DATA is JSON and published as it is. Other text is published as a JSON string,
with a note; text that starts with { [ or " and is not JSON is an error.`,
		Example: `  weir pub news '{"title":"hello"}'
  weir pub news 'plain text'
  tail -f app.log | weir pub logs:app - --text
  weir pub orders:42 '{"paid":true}' --idempotency-key payment-7781`,
		Args: cobra.ExactArgs(2),
	}
	fs := cmd.Flags()
	addClient(fs)
	fs.String("api-key", "", "API `key` to present (env WEIR_API_KEY)")
	fs.StringVar(&f.key, "key", "", "conflation `key`: newer messages of a key may replace older ones")
	fs.StringVar(&f.idempotencyKey, "idempotency-key", "", "`key` that makes a retry idempotent; with - the line's number is added")
	fs.BoolVar(&f.text, "text", false, "publish as a JSON string even if it is JSON")
	fs.IntVar(&f.attempts, "attempts", 0, "attempts per message while the server is unreachable (default 1, with - 6)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg := clientConfig(cmd.Flags())
		cfg.APIKey = flagOrEnv(cmd.Flags(), "api-key", "WEIR_API_KEY")
		cfg.Attempts = f.attempts
		if f.attempts == 0 && args[1] != "-" {
			cfg.Attempts = 1
		}
		if err := hub.CheckChannel(args[0]); err != nil {
			return &usageError{fmt.Errorf("pub: %w", err)}
		}
		c, err := newClient(cfg)
		if err != nil {
			return err
		}
		defer c.Close()
		p := publisher{cmd: cmd, c: c, channel: args[0], f: f}
		if args[1] == "-" {
			return p.lines(cmd.InOrStdin())
		}
		return p.one(args[1], f.idempotencyKey)
	}
	return cmd
}

// A publisher is one run of pub.
type publisher struct {
	cmd     *cobra.Command
	c       *client.Client
	channel string
	f       pubFlags
	noted   bool
}

func (p *publisher) one(text, idempotencyKey string) error {
	data, isText, err := payload(text, p.f.text)
	if err != nil {
		return err
	}
	if isText && !p.f.text && !p.noted {
		p.noted = true
		fmt.Fprintf(p.cmd.ErrOrStderr(), "weir: note: not JSON, published as the string %.60s\n", data)
	}
	pos, err := p.c.Publish(p.cmd.Context(), client.Publication{
		Channel: p.channel, Key: p.f.key, Data: data, IdempotencyKey: idempotencyKey,
	})
	if err != nil {
		return err
	}
	out := "-"
	if !pos.IsZero() {
		out = pos.String()
	}
	_, err = fmt.Fprintln(p.cmd.OutOrStdout(), out)
	return err
}

// maxLine bounds a line of input: no namespace takes a larger message.
const maxLine = 1<<20 + 2

func (p *publisher) lines(in io.Reader) error {
	s := bufio.NewScanner(in)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	n := 0
	for ; p.cmd.Context().Err() == nil && s.Scan(); n++ {
		if s.Text() == "" {
			continue
		}
		key := ""
		if p.f.idempotencyKey != "" {
			key = fmt.Sprintf("%s-%d", p.f.idempotencyKey, n+1)
		}
		if err := p.one(s.Text(), key); err != nil {
			return fmt.Errorf("line %d: %w", n+1, err)
		}
	}
	switch err := s.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("line %d: longer than %d bytes", n+1, maxLine-2)
	case err != nil && !errors.Is(err, os.ErrClosed):
		return fmt.Errorf("read standard input: %w", err)
	}
	return nil
}
