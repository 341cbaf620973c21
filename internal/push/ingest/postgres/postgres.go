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
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

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
		conn, err := connect(ctx, c, o.Name)
		if err != nil {
			return nil, err
		}
		r := &reader{conn: conn, poll: time.Duration(c.Poll), batch: o.Batch}
		if err := r.start(ctx); err != nil {
			r.Close()
			return nil, err
		}
		return r, nil
	}
}

func connect(ctx context.Context, c Config, name string) (*pgx.Conn, error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, errors.New("url: it cannot be read: want postgres://user@host:5432/database")
	}
	cfg, err := pgx.ParseConfig(c.URL)
	if err != nil {
		return nil, errors.New("url: PostgreSQL's client cannot read its parameters: see sslmode and the files that it names")
	}
	password, err := c.Read()
	if err != nil {
		return nil, err
	}
	if c.User != "" {
		cfg.User = c.User
	}
	if password != "" {
		cfg.Password = password
	}
	// The server ends the session of a node that has failed without closing it, and releases its lock.
	for k, v := range map[string]string{
		"application_name": "weir source " + name, "tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3",
	} {
		if cfg.RuntimeParams[k] == "" {
			cfg.RuntimeParams[k] = v
		}
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL at %s: %w", u.Host, err)
	}
	return conn, nil
}

// lockClass is the first half of the advisory lock's number, "WEIR"; the table's oid is the
// second.
const lockClass = 0x57454952

// A reader reads the outbox.
type reader struct {
	conn  *pgx.Conn
	poll  time.Duration
	batch int
}

func (r *reader) start(ctx context.Context) error {
	var exists, locked bool
	if err := r.conn.QueryRow(ctx, `SELECT to_regclass('weir_outbox') IS NOT NULL`).Scan(&exists); err != nil {
		return fmt.Errorf("look for the table weir_outbox: %w", err)
	}
	if !exists {
		return errors.New("there is no table weir_outbox: create it with: weir source sql | psql <database>")
	}
	if err := r.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, 'weir_outbox'::regclass::oid::bigint::bit(32)::int)`, lockClass).Scan(&locked); err != nil {
		return fmt.Errorf("lock the table weir_outbox: %w", err)
	}
	if !locked {
		return ingest.ErrStandby
	}
	if _, err := r.conn.Exec(ctx, `LISTEN weir_outbox`); err != nil {
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
	r.forgetNotifications() // the rows that they are about are read now
	list, err := r.rows(ctx)
	if err != nil || len(list) > 0 {
		return list, err
	}
	waiting, cancel := context.WithTimeout(ctx, min(r.poll, time.Second))
	defer cancel()
	if _, err := r.conn.WaitForNotification(waiting); err != nil && waiting.Err() == nil {
		return nil, fmt.Errorf("wait for a notification: %w", err)
	}
	return nil, nil
}

// forgetNotifications drops those that were received already.
func (r *reader) forgetNotifications() {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for {
		if n, err := r.conn.WaitForNotification(over); n == nil || err != nil {
			return
		}
	}
}

// rows reads the oldest rows. It is not interrupted by ctx: that would end the connection.
func (r *reader) rows(ctx context.Context) ([]ingest.Message, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	rows, err := r.conn.Query(ctx, `SELECT id, channel, key, data, created_at FROM weir_outbox ORDER BY id LIMIT $1`, r.batch)
	if err != nil {
		return nil, fmt.Errorf("read weir_outbox: %w", err)
	}
	defer rows.Close()
	var list []ingest.Message
	for rows.Next() {
		var id int64
		var channel, key string
		var data []byte
		var at time.Time
		if err := rows.Scan(&id, &channel, &key, &data, &at); err != nil {
			return nil, fmt.Errorf("read weir_outbox: %w", err)
		}
		list = append(list, ingest.Message{
			Position: fmt.Sprintf("%d/%d", id, at.UnixMicro()), Data: data, Time: at, Ack: id,
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
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read weir_outbox: %w", err)
	}
	return list, nil
}

// Acknowledge implements ingest.Reader.
func (r *reader) Acknowledge(ctx context.Context, done []ingest.Message) error {
	ids := make([]int64, 0, len(done))
	for i := range done {
		ids = append(ids, done[i].Ack.(int64))
	}
	_, err := r.conn.Exec(ctx, `DELETE FROM weir_outbox WHERE id = ANY($1)`, ids)
	return err
}

// maxLag bounds what is counted.
const maxLag = 1_000_000

// Lag implements ingest.Reader.
func (r *reader) Lag(ctx context.Context) (n int64, err error) {
	err = r.conn.QueryRow(ctx, `SELECT count(*) FROM (SELECT 1 FROM weir_outbox LIMIT $1) rows`, maxLag).Scan(&n)
	return n, err
}

// Close implements ingest.Reader.
func (r *reader) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = r.conn.Close(ctx)
}
