package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/client"
	"github.com/weir-gateway/weir/internal/push/hub"
)

type subFlags struct {
	transport, since string
	json, quiet      bool
	count            int
	limit            time.Duration
}

func newSub() *cobra.Command {
	var f subFlags
	cmd := &cobra.Command{
		Use:   "sub CHANNEL...",
		Short: "Follow channels and print their messages",
		Long: `Sub prints the messages of all CHANNELs, one per line, until it is stopped. When
the connection ends it reconnects and resumes exactly where it left off.
Connection changes, messages that the server no longer has, and the position to
resume from with --since are written to standard error.

With --for the exit status is 1 if the server was never reached, or if fewer than
--count messages arrived in that time.`,
		Example: `  weir sub news
  weir sub --since 0 news                      # all history, then live
  weir sub --json orders:42 orders:43 | jq .data
  weir sub --count 1 --for 10s news            # wait for one message`,
		Args: cobra.MinimumNArgs(1),
	}
	fs := cmd.Flags()
	addClient(fs)
	fs.StringVar(&f.transport, "transport", "sse", "sse or ws")
	fs.StringVar(&f.since, "since", "", "`position` to resume from; 0 is all history, empty is live only")
	fs.BoolVar(&f.json, "json", false, "print one JSON object per line: channel, id, offset, time, key, data")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "do not report connection changes")
	fs.IntVar(&f.count, "count", 0, "end after `N` messages (default: never)")
	fs.DurationVar(&f.limit, "for", 0, "end after this `time` (default: never)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case f.transport != "sse" && f.transport != "ws":
			return usage("write --transport sse or --transport ws", "sub: --transport %q is not known", f.transport)
		case f.count < 0 || f.limit < 0:
			return usage("", "sub: --count and --for must not be negative")
		}
		c, err := newClient(clientConfig(cmd.Flags()))
		if err != nil {
			return err
		}
		defer c.Close()
		s, err := c.Subscribe(cmd.Context(), client.SubscribeOptions{
			Channels: args, Since: f.since, Transport: client.Transport(f.transport),
		})
		if err != nil {
			return &usageError{err} // nothing was sent yet: the arguments are wrong
		}
		defer s.Close()
		fl := follower{s: s, f: f, out: cmd.OutOrStdout(), log: cmd.ErrOrStderr()}
		if f.quiet {
			fl.log = io.Discard
		}
		return fl.run(cmd.Context())
	}
	return cmd
}

// A follower is one run of sub.
type follower struct {
	s        *client.Stream
	f        subFlags
	out, log io.Writer

	n         int   // messages printed
	connected bool  // ever
	down      error // why the stream is away; nil while it runs
}

// run prints events until the count, the time or the user ends it.
func (fl *follower) run(ctx context.Context) error {
	timed := ctx
	if fl.f.limit > 0 {
		var cancel context.CancelFunc
		timed, cancel = context.WithTimeout(ctx, fl.f.limit)
		defer cancel()
	}
	for fl.f.count == 0 || fl.n < fl.f.count {
		ev, err := fl.s.Next(timed)
		switch {
		case err == nil:
		case ctx.Err() != nil: // a signal: the wish of the user
			fl.finish()
			return nil
		case timed.Err() != nil && errors.Is(err, context.DeadlineExceeded):
			fl.finish()
			return fl.timeUp()
		default:
			fl.finish()
			return fmt.Errorf("sub: %w", err)
		}
		if err := fl.event(ev); err != nil {
			return err
		}
	}
	fl.finish()
	return nil
}

// timeUp is the verdict after --for.
func (fl *follower) timeUp() error {
	switch {
	case !fl.connected && fl.down != nil:
		return fmt.Errorf("sub: never connected: %w", fl.down)
	case !fl.connected:
		return errors.New("sub: never connected")
	case fl.f.count > 0:
		return fmt.Errorf("sub: %d of %d messages in %v", fl.n, fl.f.count, fl.f.limit)
	}
	return nil
}

func (fl *follower) finish() {
	if p := fl.s.Position(); p != "" && p != "0" {
		fl.note("stopped; continue with --since %s", p)
	}
}

func (fl *follower) note(format string, a ...any) {
	fmt.Fprintf(fl.log, "weir: "+format+"\n", a...)
}

func (fl *follower) event(ev client.Event) error {
	switch ev := ev.(type) {
	case *client.Message:
		fl.n++
		line := humanLine(ev)
		if fl.f.json {
			line = jsonLine(ev)
		}
		_, err := fl.out.Write(line)
		return err
	case *client.Gap:
		fl.note("gap: messages may be missing in namespace %q after %q (%s)", ev.Namespace, ev.From, ev.Reason)
	case *client.State:
		fl.state(ev)
	}
	return nil
}

func (fl *follower) state(st *client.State) {
	if st.Connected {
		switch {
		case fl.connected:
			fl.note("connected again")
		default:
			fl.note("connected")
		}
		fl.connected, fl.down = true, nil
		return
	}
	// The same error again and again is of no use.
	if fl.down == nil || fl.down.Error() != st.Err.Error() {
		what := "connection lost"
		if !fl.connected {
			what = "not connected"
		}
		fl.note("%s: %v; trying again", what, st.Err)
		if h := hintFor(st.Err); h != "" && !fl.connected {
			fmt.Fprintf(fl.log, "hint: %s\n", h)
		}
	}
	fl.down = st.Err
}

// humanLine is "15:04:05.000 channel position data". The time is local; what is
// not known is "-".
func humanLine(m *client.Message) []byte {
	at, pos := "-", "-"
	if !m.Time.IsZero() {
		at = m.Time.Local().Format("15:04:05.000")
	}
	if !m.Position.IsZero() {
		pos = m.Position.String()
	}
	channel := m.Channel
	if hub.CheckChannel(channel) != nil {
		channel = fmt.Sprintf("%q", channel)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s %s ", at, channel, pos)
	b.WriteString(printable(oneLine(m.Data)))
	b.WriteByte('\n')
	return b.Bytes()
}

// oneLine removes the white space between JSON tokens, which may be line ends.
func oneLine(data json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, data) != nil {
		return fmt.Sprintf("%q", data)
	}
	return b.String()
}

// printable writes control characters, which a JSON string may hold from DEL
// on, as JSON escapes: they could command the terminal.
func printable(s string) string {
	if strings.IndexFunc(s, isC1) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if isC1(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func isC1(r rune) bool { return r >= 0x7f && r < 0xa0 }

// jsonLine is the message as one JSON object on a line.
func jsonLine(m *client.Message) []byte {
	line := struct {
		Channel string          `json:"channel"`
		ID      string          `json:"id,omitempty"`
		Offset  uint64          `json:"offset,omitempty"`
		Time    int64           `json:"time,omitempty"`
		Key     string          `json:"key,omitempty"`
		Data    json.RawMessage `json:"data"`
	}{Channel: m.Channel, Key: m.Key, Data: json.RawMessage(oneLine(m.Data)), Offset: m.Position.Offset}
	if !m.Position.IsZero() {
		line.ID = m.Position.String()
	}
	if !m.Time.IsZero() {
		line.Time = m.Time.UnixMilli()
	}
	b, err := plainJSON(line)
	if err != nil {
		panic("weir: a message that was parsed cannot be written: " + err.Error())
	}
	return b
}
