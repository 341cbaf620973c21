package translate

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"

	"sigs.k8s.io/yaml"

	"github.com/weir-gateway/weir/internal/net/tlsterm"
)

// Render returns base, the text of a configuration of Weir, with c added to its routes,
// clusters, splits and certificates. fallback, with the files of a certificate, is shown to
// clients that name no host of the others, and keeps TLS on while there are none. Zero: c has
// no certificates.
func (c Config) Render(base []byte, fallback tlsterm.Certificate) ([]byte, error) {
	whole := map[string]any{}
	if err := yaml.UnmarshalStrict(base, &whole); err != nil {
		return nil, fmt.Errorf("read the base configuration: %w", err)
	}
	if err := errors.Join(extend(whole, "routes", c.Routes), extend(whole, "clusters", c.Clusters), extend(whole, "splits", c.Splits)); err != nil {
		return nil, err
	}
	if fallback.CertFile != "" {
		tls, ok := whole["tls"].(map[string]any)
		if !ok && whole["tls"] != nil {
			return nil, fmt.Errorf("tls of the base configuration is not a section")
		}
		tls = maps.Clone(tls)
		if tls == nil {
			tls = map[string]any{}
		}
		if err := extend(tls, "certificates", append([]tlsterm.Certificate{fallback}, c.Certificates...)); err != nil {
			return nil, err
		}
		whole["tls"] = tls
	}
	return yaml.Marshal(whole)
}

// extend appends section to the list at key.
func extend[T any](whole map[string]any, key string, section []T) error {
	list, ok := whole[key].([]any)
	if !ok && whole[key] != nil {
		return fmt.Errorf("%s of the base configuration is not a list", key)
	}
	var zero T
	text, err := json.Marshal(append([]T{zero}, section...))
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	var more []any
	if err := json.Unmarshal(text, &more); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	for _, v := range more[1:] {
		subtract(v, more[0])
		list = append(list, prune(v))
	}
	if len(list) > 0 {
		whole[key] = list
	}
	return nil
}

// subtract removes what v has as the zero of its type has it.
func subtract(v, zero any) {
	whole, ok := v.(map[string]any)
	unset, ok2 := zero.(map[string]any)
	if !ok || !ok2 {
		return
	}
	for k, e := range whole {
		if reflect.DeepEqual(e, unset[k]) {
			delete(whole, k)
		} else {
			subtract(e, unset[k])
		}
	}
}

// prune removes the zeros, which mean that a key is not set.
func prune(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if e = prune(e); e == nil {
				delete(v, k)
			} else {
				v[k] = e
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		for i := range v {
			if e := prune(v[i]); e != nil {
				v[i] = e
			}
		}
		if len(v) == 0 {
			return nil
		}
	case string:
		if v == "" || v == "0s" {
			return nil
		}
	case float64:
		if v == 0 {
			return nil
		}
	case bool:
		if !v {
			return nil
		}
	}
	return v
}
