package auth

import (
	"errors"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-gateway/weir/internal/app/takeover"
)

const stateSecret = "a-secret-of-at-least-thirty-two-bytes"

func TestAnIdentityIsRestoredInAnotherProcess(t *testing.T) {
	cfg := Config{KeySet: KeySet{HMACSecret: stateSecret}, APIKeys: []APIKey{{Name: "robot", Key: "at-least-16-bytes", Subscribe: []string{"r.*"}}}}
	old, fresh := newAuth(t, cfg), newAuth(t, cfg)
	changed := cfg
	changed.HMACSecret, changed.APIKeys = "another-secret-of-thirty-two-bytes-and-more", nil
	other := newAuth(t, changed)
	now := time.Now()
	token := sign(t, "HS256", []byte(stateSecret), nil, jwt.MapClaims{
		"sub": "ann", "exp": now.Add(time.Hour).Unix(), "scope": "read write", "role": "admin",
		"weir": map[string]any{"subscribe": []string{"news.*", "ann"}, "publish": []string{"chat"}},
	})
	ann, err := old.Verify(t.Context(), token, now)
	if err != nil {
		t.Fatal(err)
	}
	robot, ok := old.APIKey([]byte("at-least-16-bytes"))
	if !ok {
		t.Fatal("no API key")
	}
	move := func(to *Authenticator, id *Identity) (*Identity, error) {
		t.Helper()
		s, ok := old.AppendState(nil, id)
		if !ok {
			t.Fatalf("%v does not move", id)
		}
		return to.Restore(s)
	}
	got, err := move(fresh, ann)
	if err != nil {
		t.Fatal(err)
	}
	if got.Subject != "ann" || got.By != ann.By || !got.Expires.Equal(ann.Expires) || !got.HasScope("write") || got.Claim("role") != "admin" ||
		!got.CanSubscribe("news.x") || !got.CanSubscribe("ann") || got.CanSubscribe("chat") || !got.CanPublish("chat") || got.CanPublish("ann") {
		t.Errorf("it is %+v, and was %+v", got, ann)
	}
	if _, ok := got.Current(); !ok {
		t.Error("what proves it is not known")
	}
	if got, err := move(fresh, robot); err != nil || got.Subject != "robot" || !got.CanSubscribe("r.1") {
		t.Errorf("an API key: %+v, %v", got, err)
	}
	for _, id := range []*Identity{ann, robot} {
		if got, err := move(other, id); !errors.Is(err, ErrProof) {
			t.Errorf("%v where its key is not known: %+v, %v", id, got, err)
		}
	}
	if got, err := move(other, nil); err != nil || got != nil {
		t.Errorf("anonymous: %+v, %v", got, err)
	}
	if _, ok := other.AppendState(nil, ann); ok {
		t.Error("an identity moves that another authenticator has verified")
	}
	// Nothing in a state makes an identity that nothing proves.
	if got, err := fresh.Restore(takeover.State{}.MustString(idBy, ByToken).MustString(idSubscribe, "*")); !errors.Is(err, ErrProof) {
		t.Errorf("without a proof: %+v, %v", got, err)
	}
}

func FuzzRestoreIdentity(f *testing.F) {
	a := newAuth(f, Config{KeySet: KeySet{HMACSecret: stateSecret}})
	f.Add([]byte(takeover.State{}.MustString(idBy, ByToken).MustString(idSubscribe, "*").MustString(idClaim, "a\x00b").MustString(idToken, "a\nb\nc")))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := a.Restore(takeover.State(b))
		if err == nil && id != nil && id.By != "" && id.By != ByProgram {
			if _, ok := id.Current(); !ok {
				t.Fatalf("%x makes %+v", b, id)
			}
		}
	})
}
