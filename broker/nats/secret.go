package nats

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
)

// secretKey is the key of a bucket's only value.
const secretKey = "secret"

// Secret returns n random bytes, the same on all nodes of the broker: those of the bucket
// PREFIX_name, which the first node makes, with replicas copies. They stay until the
// bucket is removed. After Start.
func Secret(ctx context.Context, b *Broker, name string, replicas, n int) ([]byte, error) {
	if err := b.stateErr(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(b.nc)
	if err != nil {
		return nil, err
	}
	values, err := openBucket(ctx, js, jetstream.KeyValueConfig{Bucket: b.cfg.Prefix + "_" + name, Replicas: replicas, MaxValueSize: 1 << 10})
	if err != nil {
		return nil, err
	}
	for range 3 {
		e, err := values.Get(ctx, secretKey)
		if err == nil && len(e.Value()) == n {
			return e.Value(), nil
		}
		if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
			return nil, unavailable(err)
		}
		fresh := make([]byte, n)
		_, _ = rand.Read(fresh) // never fails
		if err == nil {         // of another length: no version has written that
			_, err = values.Update(ctx, secretKey, fresh, e.Revision())
		} else {
			_, err = values.Create(ctx, secretKey, fresh)
		}
		if err == nil {
			return fresh, nil
		}
	}
	return nil, unavailable(errors.New("another node writes the secret again and again"))
}
