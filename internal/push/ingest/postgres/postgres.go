// Package postgres reads sources of PostgreSQL: the table weir_outbox, into which an
// application writes within its own transactions, with the function weir_publish.
//
// Rows are published in the order of their ids, as far as they are visible, and then deleted:
// a transaction that commits late is not skipped. NOTIFY wakes the reader, and it looks by
// itself once in a while. An advisory lock on the table lets one node read at a time.
package postgres

import (
	"context"
	_ "embed" // for the outbox
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/ingest"
)

// Schema creates the table and the function.
//
//go:embed outbox.sql
var Schema string

// A Config is a connection to PostgreSQL.
type Config struct {
	// URL of the database, postgres://user@host:5432/database. sslmode, sslrootcert,
	// search_path and other parameters of libpq may follow. It must be a session of its own:
	// a pooler in transaction mode does not deliver notifications.
	URL string `json:"url" secret:"path"`
	ingest.Credential
	// Poll is how often the table is read without a notification. 0 means 1s.
	Poll hub.Duration `json:"poll"`
}

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	if c.Poll == 0 {
		c.Poll = hub.Duration(time.Second)
	}
	return c
}

// Validate returns all that is wrong with c, joined. It expects c completed.
func (c Config) Validate() error {
	errs := []error{ingest.CheckURL("url", c.URL, "postgres", "postgresql"), c.Credential.Validate()}
	if c.Poll < hub.Duration(10*time.Millisecond) || c.Poll > hub.Duration(time.Hour) {
		errs = append(errs, fmt.Errorf("poll: invalid duration %s: want 10ms to 1h", c.Poll))
	}
	return errors.Join(errs...)
}

// Open returns the Opener of a source.
func Open(c Config) ingest.Opener {
	c = c.WithDefaults()
	return func(ctx context.Context, o ingest.Options) (ingest.Reader, error) {
		r := &reader{poll: time.Duration(c.Poll), batch: o.Batch}
		if err := r.connect(ctx, c, o.Name); err != nil {
			return nil, err
		}
		if err := r.start(ctx); err != nil {
			r.Close()
			return nil, err
		}
		return r, nil
	}
}

// connect uses the connection of pgx without its types, which are a megabyte of code: the
// four columns of the outbox are text, a number and a time.
func (r *reader) connect(ctx context.Context, c Config, name string) error {
	u, err := url.Parse(c.URL)
	if err != nil {
		return errors.New("url: it cannot be read: want postgres://user@host:5432/database")
	}
	cfg, err := pgconn.ParseConfig(c.URL)
	if err != nil {
		return errors.New("url: PostgreSQL's client cannot read its parameters: see sslmode and the files that it names")
	}
	password, err := c.Read()
	if err != nil {
		return err
	}
	if c.User != "" {
		cfg.User = c.User
	}
	if password != "" {
		cfg.Password = password
	}
	// These are pgx's own: no statement is prepared here, and the server would refuse them.
	for _, k := range []string{"default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity"} {
		delete(cfg.RuntimeParams, k)
	}
	// The server ends the session of a node that has failed without closing it, and releases its lock.
	for k, v := range map[string]string{
		"application_name": "weir source " + name, "tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3",
	} {
		if cfg.RuntimeParams[k] == "" {
			cfg.RuntimeParams[k] = v
		}
	}
	cfg.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { r.notified = true }
	if r.conn, err = pgconn.ConnectConfig(ctx, cfg); err != nil {
		return fmt.Errorf("connect to PostgreSQL at %s: %w", u.Host, err)
	}
	return nil
}

// lockClass is the first half of the advisory lock's number, "WEIR"; the table's oid is the
// second.
const lockClass = 0x57454952

// A reader reads the outbox.
type reader struct {
	conn  *pgconn.PgConn
	poll  time.Duration
	batch int

	notified bool // a notification was received since the last read
}

// query returns the rows of a statement. Its parameters are in PostgreSQL's text format, and the columns of the rows in
// formats: text for 0, binary for 1; nil is text for all.
func (r *reader) query(ctx context.Context, statement string, formats []int16, args ...string) ([][][]byte, error) {
	params := make([][]byte, len(args))
	for i, a := range args {
		params[i] = []byte(a)
	}
	result := r.conn.ExecParams(ctx, statement, params, nil, nil, formats).Read()
	return result.Rows, result.Err
}

// value returns the only column of the only row of a statement.
func (r *reader) value(ctx context.Context, statement string, args ...string) (string, error) {
	rows, err := r.query(ctx, statement, nil, args...)
	if err != nil {
		return "", err
	}
	if len(rows) != 1 || len(rows[0]) != 1 {
		return "", fmt.Errorf("%d rows, want 1 of one column", len(rows))
	}
	return string(rows[0][0]), nil
}

func (r *reader) start(ctx context.Context) error {
	exists, err := r.value(ctx, `SELECT to_regclass('weir_outbox') IS NOT NULL`)
	if err != nil {
		return fmt.Errorf("look for the table weir_outbox: %w", err)
	}
	if exists != "t" {
		return errors.New("there is no table weir_outbox: create it with: weir source sql | psql <database>")
	}
	locked, err := r.value(ctx, `SELECT pg_try_advisory_lock($1, 'weir_outbox'::regclass::oid::bigint::bit(32)::int)`, strconv.Itoa(lockClass))
	if err != nil {
		return fmt.Errorf("lock the table weir_outbox: %w", err)
	}
	if locked != "t" {
		return ingest.ErrStandby
	}
	if _, err := r.query(ctx, `LISTEN weir_outbox`, nil); err != nil {
		return fmt.Errorf("listen to weir_outbox: %w", err)
	}
	return nil
}

// patience bounds a statement.
const patience = 10 * time.Second

// Read implements ingest.Reader.
func (r *reader) Read(ctx context.Context) ([]ingest.Message, error) {
	if ctx.Err() != nil {
		return nil, nil
	}
	r.notified = false // the rows that earlier notifications are about are read now
	list, err := r.rows(ctx)
	if err != nil || len(list) > 0 || r.notified {
		return list, err
	}
	waiting, cancel := context.WithTimeout(ctx, min(r.poll, time.Second))
	defer cancel()
	if err := r.conn.WaitForNotification(waiting); err != nil && waiting.Err() == nil {
		return nil, fmt.Errorf("wait for a notification: %w", err)
	}
	return nil, nil
}

// rows reads the oldest rows. It is not interrupted by ctx: that would end the connection.
func (r *reader) rows(ctx context.Context) ([]ingest.Message, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	rows, err := r.query(ctx, `SELECT id, channel, key, data, created_at FROM weir_outbox ORDER BY id LIMIT $1`, []int16{0, 0, 0, 0, 1}, strconv.Itoa(r.batch))
	if err != nil {
		return nil, fmt.Errorf("read weir_outbox: %w", err)
	}
	var list []ingest.Message
	for _, row := range rows {
		if len(row) != 5 || len(row[4]) != 8 {
			return nil, fmt.Errorf("read weir_outbox: the columns of %q have other types than those of weir source sql", row[0])
		}
		id, channel, key := string(row[0]), string(row[1]), string(row[2])
		at := time.UnixMicro(year2000 + int64(binary.BigEndian.Uint64(row[4])))
		list = append(list, ingest.Message{
			Position: fmt.Sprintf("%s/%d", id, at.UnixMicro()), Data: row[3], Time: at, Ack: id,
			Lookup: func(name string) (string, bool) {
				switch name {
				case "channel":
					return channel, true
				case "key":
					return key, true
				}
				return "", false
			},
		})
	}
	return list, nil
}

// year2000 is where PostgreSQL's binary times start, in microseconds since 1970.
const year2000 = 946_684_800_000_000

// Acknowledge implements ingest.Reader.
func (r *reader) Acknowledge(ctx context.Context, done []ingest.Message) error {
	ids := make([]string, 0, len(done))
	for i := range done {
		ids = append(ids, done[i].Ack.(string))
	}
	_, err := r.query(ctx, `DELETE FROM weir_outbox WHERE id = ANY($1)`, nil, "{"+strings.Join(ids, ",")+"}")
	return err
}

// maxLag bounds what is counted.
const maxLag = 1_000_000

// Lag implements ingest.Reader.
func (r *reader) Lag(ctx context.Context) (int64, error) {
	n, err := r.value(ctx, `SELECT count(*) FROM (SELECT 1 FROM weir_outbox LIMIT $1) rows`, strconv.Itoa(maxLag))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(n, 10, 64)
}

// Close implements ingest.Reader.
func (r *reader) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = r.conn.Close(ctx)
}
