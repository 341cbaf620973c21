package app

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/protocol/mercure"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// liveOwners are who owns the keys that a reload applies: each has one way by which all of
// its section takes effect. got is what it has in force, want what the configuration specifies;
// nil means that the tests named show the section at work.
var liveOwners = map[string]struct {
	got, want func(g *gateway, c *config.Config) any
	tests     string
}{
	"auth": {
		got:   func(g *gateway, _ *config.Config) any { return g.auth.Config() },
		want:  func(_ *gateway, c *config.Config) any { return c.Auth.WithDefaults() },
		tests: "TestSessionsEndWithTheKeyOfTheirToken, TestAnAPIKeyIsAddedNarrowedAndRemoved, TestAReloadSetsTheAllowedOrigins",
	},
	"key_sets": {
		got:   func(g *gateway, _ *config.Config) any { return g.keySets["own"].Config().KeySet },
		want:  func(_ *gateway, c *config.Config) any { return c.KeySets["own"].WithDefaults() },
		tests: "TestCentrifugeIsSetAnew, TestMercureIsSetAnew",
	},
	"namespaces": {
		got: func(g *gateway, c *config.Config) any {
			var all []hub.Namespace
			for _, n := range c.Namespaces {
				ns, err := g.hub.Namespace(n.Name + ":x")
				if err != nil {
					return err
				}
				all = append(all, *ns)
			}
			return all
		},
		want: func(_ *gateway, c *config.Config) any {
			var all []hub.Namespace
			for _, n := range c.Namespaces {
				all = append(all, n.WithDefaults())
			}
			return all
		},
		tests: "TestNamespacesComeChangeAndGo",
	},
	"centrifuge": {
		got:   func(g *gateway, _ *config.Config) any { return g.protocol.Centrifuge.Config() },
		want:  func(_ *gateway, c *config.Config) any { return c.Centrifuge.WithDefaults() },
		tests: "TestCentrifugeIsSetAnew",
	},
	"mercure": {
		got:   func(g *gateway, _ *config.Config) any { return g.protocol.Mercure.Load().Config() },
		want:  func(_ *gateway, c *config.Config) any { return c.Mercure.WithDefaults() },
		tests: "TestMercureIsSetAnew",
	},
	"pusher": {
		got:   func(g *gateway, _ *config.Config) any { return g.protocol.Pusher.Config() },
		want:  func(_ *gateway, c *config.Config) any { return c.Pusher.WithDefaults() },
		tests: "TestPusherAppsComeChangeAndGo",
	},
	"limits": {
		got:   func(g *gateway, _ *config.Config) any { return g.admission.front.Config() },
		want:  func(_ *gateway, c *config.Config) any { return c.Limits },
		tests: "TestAReloadSetsTheLimits",
	},
	"extensions": {tests: "TestExtensionsAreReloaded"},
	"sources":    {tests: "TestSourcesComeChangeAndGo"},
	"log":        {tests: "TestAReloadSetsTheLogLevel"},
	"access_log": {tests: "TestAReloadOpensTheAccessLogAgain"},
	"routes":     {tests: "TestReloadAppliesRoutesAndKeepsWhatIsWrongOut"},
	"clusters":   {tests: "TestReloadAppliesRoutesAndKeepsWhatIsWrongOut"},
	"splits":     {tests: "TestReloadAppliesRoutesAndKeepsWhatIsWrongOut"},
}

// TestEveryLiveSectionHasAnOwner fails for a key that becomes live without being here.
func TestEveryLiveSectionHasAnOwner(t *testing.T) {
	seen := map[string]bool{}
	for path, class := range reloadClasses() {
		section, _, _ := strings.Cut(path, ".")
		section = strings.TrimSuffix(section, "[]")
		if class == config.OnRestart {
			continue
		}
		seen[section] = true
		if _, ok := liveOwners[section]; !ok {
			t.Errorf("%s is %s, and no owner of %s is shown to apply it", path, class, section)
		}
	}
	for section := range liveOwners {
		if !seen[section] {
			t.Errorf("%s has no key that a reload applies", section)
		}
	}
}

// reloadClasses returns the reload class of every key that holds a value, by its path: below the
// entries of a list "namespaces[].name", of a map "key_sets.*.issuer".
func reloadClasses() map[string]config.Class {
	all := map[string]config.Class{}
	addClasses(all, reflect.TypeFor[config.Config](), "", config.OnRestart)
	return all
}

// addClasses adds the keys of section t; around is the class of those that have none of their own.
func addClasses(all map[string]config.Class, t reflect.Type, prefix string, around config.Class) {
	for i := range t.NumField() {
		f := t.Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && key == "" {
			addClasses(all, f.Type, prefix, around)
			continue
		}
		if !f.IsExported() || key == "" || key == "-" {
			continue
		}
		class := cmp.Or(config.Class(f.Tag.Get("reload")), around)
		path := strings.TrimPrefix(prefix+"."+key, ".")
		inner, below := path, f.Type
		for below.Kind() == reflect.Pointer || !readsItself(below) && (below.Kind() == reflect.Slice || below.Kind() == reflect.Map) {
			switch below.Kind() {
			case reflect.Slice:
				inner += "[]"
			case reflect.Map:
				inner += ".*"
			}
			below = below.Elem()
		}
		if below.Kind() == reflect.Struct && !readsItself(below) {
			addClasses(all, below, inner, class)
		} else {
			all[path] = class
		}
	}
}

// readsItself reports whether a value of t is read from one text or piece of JSON: it is not a section.
func readsItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) || p.Implements(reflect.TypeFor[json.Unmarshaler]())
}

// filledIn has an entry in each list and map of the sections whose owners are compared.
func filledIn(c *config.Config) {
	withProtocols(c)
	c.Auth.APIKeys[0].Publish, c.Auth.APIKeys[0].Subscribe = []string{"a"}, []string{"a"}
	c.KeySets = map[string]auth.KeySet{"own": {HMACSecret: newSecret}, "other": {HMACSecret: oldSecret}}
	c.Centrifuge.Namespaces = map[string]centrifuge.Namespace{"private": {}}
	c.Centrifuge.Proxies.Connect.Endpoint, c.Centrifuge.Proxies.Refresh.Endpoint = "http://127.0.0.1:9/c", "http://127.0.0.1:9/r"
	c.Centrifuge.Proxies.Subscribe.Endpoint, c.Centrifuge.Proxies.Publish.Endpoint = "http://127.0.0.1:9/s", "http://127.0.0.1:9/p"
	c.Centrifuge.Proxies.SubRefresh.Endpoint, c.Centrifuge.Proxies.RPC.Endpoint = "http://127.0.0.1:9/f", "http://127.0.0.1:9/x"
	c.Mercure.Issuers = []mercure.Issuer{{Issuer: "https://issuer.example", Keys: "own"}}
	c.Pusher.Apps[0].Webhooks = []pusher.Webhook{{URL: "http://127.0.0.1:9/hook"}}
}

// otherValues are those of keys that cannot take any.
var otherValues = map[string]any{
	"auth.hmac_secret": auth.Secret(newSecret), "auth.hmac_previous_secret": auth.Secret(oldSecret), "auth.algorithms": []string{"HS256"},
	"auth.allowed_origins": []string{"https://a.example"}, "auth.api_keys[].key": auth.Secret("another-key-0123456789"), "auth.leeway": hub.Duration(time.Second),
	"key_sets.*.hmac_secret": auth.Secret(oldSecret), "key_sets.*.hmac_previous_secret": auth.Secret(newSecret), "key_sets.*.algorithms": []string{"HS256"},
	"key_sets.*.leeway": hub.Duration(time.Second), "namespaces[].policy": hub.Conflate, "namespaces[].class": "market", "namespaces[].history_ttl": hub.Duration(time.Hour),
	"namespaces[].idempotency_window": hub.Duration(time.Minute), "namespaces[].history_bytes": int64(1 << 20), "namespaces[].queue_bytes": 1 << 20,
	"namespaces[].max_message_bytes": 1 << 10, "centrifuge.keys": "own", "centrifuge.subscription_keys": "other", "centrifuge.api_key": auth.Secret("an-api-key-of-its-own"),
	"centrifuge.api_error_mode": "transport", "centrifuge.ping_interval": hub.Duration(20 * time.Second), "centrifuge.pong_timeout": hub.Duration(5 * time.Second),
	"centrifuge.stale_timeout": hub.Duration(5 * time.Second), "centrifuge.personal_namespace": "private", "centrifuge.events_channel": "private:events",
	"centrifuge.namespaces.*.force_recovery_mode": "cache", "centrifuge.namespaces.*.channel_regex": "^a", "centrifuge.namespaces.*.publication_data_format": "json",
	"mercure.publisher_keys": "own", "mercure.subscriber_keys": "other", "mercure.resource": "https://hub.example", "mercure.issuers[].keys": "other",
	"mercure.publish_origins": []string{"https://a.example"}, "mercure.heartbeat": hub.Duration(30 * time.Second), "mercure.connection_life": hub.Duration(5 * time.Minute),
	"mercure.max_topics": 10, "mercure.max_matchers": 10, "pusher.apps[].allowed_origins": []string{"a.example"}, "pusher.apps[].webhooks[].events": []string{"client_event"},
	"limits.exempt": []string{"10.0.0.0/8"}, "limits.buckets": 1024,
}

// sameValue are keys that say the same as another one in another way, names of entries, and
// what needs a broker with subjects.
var sameValue = []string{
	"auth.hmac_secret_file", "auth.hmac_previous_secret_file", "auth.public_keys", "auth.jwks_url", "auth.api_keys[].name", "auth.api_keys[].key_file", "auth.api_keys[].sha256",
	"key_sets.*.hmac_secret_file", "key_sets.*.hmac_previous_secret_file", "key_sets.*.public_keys", "key_sets.*.jwks_url",
	"namespaces[].name", "centrifuge.api_key_file", "centrifuge.rpc_subject", "mercure.issuers[].issuer", "pusher.apps[].id", "pusher.apps[].webhooks[].url",
}

// TestEveryLiveKeyReachesItsOwner changes all keys that a reload applies, section by
// section, and compares what the owner has in force with the configuration.
func TestEveryLiveKeyReachesItsOwner(t *testing.T) {
	classes := reloadClasses()
	g := startLive(t, filledIn, Options{})
	for section, o := range liveOwners {
		if o.got == nil {
			continue
		}
		changed := map[string]bool{}
		g.src.set(func(c *config.Config) {
			deepCopy(c)
			a := &alterer{classes: classes, changed: changed, failed: func(path string) { t.Errorf("%s: this test cannot change it", path) }}
			a.section(reflect.ValueOf(c).Elem(), "", section)
		})
		done, err := g.Reload(t.Context())
		if err != nil {
			t.Errorf("%s: %v", section, err)
			return
		}
		if len(done.Waiting) > 0 {
			t.Errorf("%s: %v wait for a restart", section, done.Waiting)
		}
		for path, class := range classes {
			if head, _, _ := strings.Cut(path, "."); strings.TrimSuffix(head, "[]") != section || class == config.OnRestart || changed[path] {
				continue
			}
			if !hasPrefixOf(path, sameValue) {
				t.Errorf("%s was not changed", path)
			}
		}
		c := g.reload.now()
		if got, want := o.got(g.gateway, c), o.want(g.gateway, c); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: in force\n%+v, want\n%+v", section, got, want)
		}
	}
}

func hasPrefixOf(path string, list []string) bool {
	for _, p := range list {
		if path == p || strings.HasPrefix(path, p+"[") || strings.HasPrefix(path, p+".") {
			return true
		}
	}
	return false
}

// An alterer gives the keys of a section other values.
type alterer struct {
	classes map[string]config.Class
	changed map[string]bool
	failed  func(path string)
}

// section walks the fields of v; only is the one section of the outermost level.
func (a *alterer) section(v reflect.Value, prefix, only string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && key == "" {
			a.section(v.Field(i), prefix, only)
			continue
		}
		if key == "" || key == "-" || only != "" && key != only {
			continue
		}
		a.value(v.Field(i), strings.TrimPrefix(prefix+"."+key, "."))
	}
}

func (a *alterer) value(v reflect.Value, path string) {
	class, leaf := a.classes[path]
	switch {
	case leaf:
		if class != config.OnRestart && !hasPrefixOf(path, sameValue) {
			a.leaf(v, path)
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			a.value(v.Index(i), path+"[]")
		}
	case v.Kind() == reflect.Map:
		for k, e := range v.Seq2() {
			x := reflect.New(e.Type()).Elem()
			x.Set(e)
			a.value(x, path+".*")
			v.SetMapIndex(k, x)
		}
	case v.Kind() == reflect.Struct:
		a.section(v, path, "")
	default:
		a.failed(path)
	}
}

func (a *alterer) leaf(v reflect.Value, path string) {
	was := fmt.Sprintf("%#v", v.Interface())
	if other, ok := otherValues[path]; ok {
		v.Set(reflect.ValueOf(other).Convert(v.Type()))
	} else {
		other := reflect.New(v.Type()).Elem()
		switch {
		case v.Kind() == reflect.Bool:
			other.SetBool(!v.Bool())
		case v.Kind() == reflect.String:
			other.SetString(v.String() + "x")
		case v.CanInt() && v.Type().Name() == "Duration":
			other.SetInt(v.Int() + int64(time.Second))
		case v.CanInt():
			other.SetInt(v.Int() + 7)
		case v.CanUint():
			other.SetUint(1 - min(v.Uint(), 1))
		case v.CanFloat():
			other.SetFloat(v.Float() + 1)
		case v.Type() == reflect.TypeFor[[]string]():
			other.Set(reflect.ValueOf([]string{"x"}))
		case v.Type() == reflect.TypeFor[map[string]string]():
			other.Set(reflect.ValueOf(map[string]string{"X-A": "b"}))
		default:
			a.failed(path)
			return
		}
		v.Set(other)
	}
	a.changed[path] = true
	if fmt.Sprintf("%#v", v.Interface()) == was && v.Kind() != reflect.String {
		a.failed(path + " (it has that value)")
	}
}
