package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// findings collects what is wrong with one configuration, each problem once and with
// the place where the key that it concerns was written.
type findings struct {
	cfg     Config
	origins Origins

	all    []error
	broken []string // paths of keys that could not be read, or that were probably meant by them
}

// unread adds the problems of reading. Their places are part of them.
func (f *findings) unread(err error) {
	for _, p := range Problems(err) {
		f.all = append(f.all, p)
		if k, ok := errors.AsType[*KeyError](p); ok && k.Key != "" {
			f.broken = append(f.broken, k.Key)
			if meant, ok := strings.CutPrefix(k.hint, "did you mean "); ok {
				f.broken = append(f.broken, strings.TrimSuffix(meant, "?"))
			}
		}
	}
}

// add adds the problems that err joins, except those of keys that could not be read
// and those found before.
func (f *findings) add(err error) {
	for _, p := range Problems(err) {
		path, cause := f.split(p.Error())
		if slices.ContainsFunc(f.broken, func(b string) bool { return path != "" && (within(path, b) || within(b, path)) }) {
			continue
		}
		if slices.ContainsFunc(f.all, func(e error) bool { return strings.HasSuffix(e.Error(), cause) }) {
			continue
		}
		f.all = append(f.all, f.origins.at(path, p))
	}
}

// Locate leads each part of an error of c.Validate with the place where the value was
// written, as far as it is known.
func (c Config) Locate(o Origins, err error) error {
	f := findings{cfg: c, origins: o}
	f.add(err)
	return errors.Join(f.all...)
}

// within reports whether the key at path is outer or a part of it.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// split parts a message into the path of the key that it starts with, in the form
// "log: level: …" or "route \"name\": limits: …", and the rest, which says what is wrong.
func (f *findings) split(msg string) (path, cause string) {
	for {
		head, rest, ok := strings.Cut(msg, ": ")
		if !ok {
			return path, msg
		}
		switch named := f.named(head); {
		case named != "":
			path = named
		case strings.ContainsAny(head, " \"/"):
			return path, msg
		default:
			path = join(path, head)
		}
		msg = rest
	}
}

// named returns the path of what packages call by name in their messages: namespaces,
// routes, clusters and splits. It is empty for everything else.
func (f *findings) named(head string) string {
	kind, quoted, ok := strings.Cut(head, " ")
	name, err := strconv.Unquote(quoted)
	if !ok || err != nil {
		return ""
	}
	list, i := "", -1
	switch kind {
	case "namespace":
		list, i = "namespaces", slices.IndexFunc(f.cfg.Namespaces, func(n hub.Namespace) bool { return n.Name == name })
	case "route":
		list, i = "routes", slices.IndexFunc(f.cfg.Routes, func(r policy.RouteConfig) bool { return r.WithDefaults().Name == name })
	case "cluster":
		list, i = "clusters", slices.IndexFunc(f.cfg.Clusters, func(u upstream.Config) bool { return u.Name == name })
	case "split":
		list, i = "splits", slices.IndexFunc(f.cfg.Splits, func(s upstream.SplitConfig) bool { return s.Name == name })
	}
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("%s[%d]", list, i)
}
