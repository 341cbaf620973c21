// Package config turns a YAML file, WEIR_* environment variables and flags
// into one Config, and says precisely what is wrong when it cannot.
//
// Config is composed of the packages' own Config structs; this package adds no
// second spelling. A field's json tag is its key, the keys on the way to it
// joined by dots are its path ("broker.nats.dir"), and the path in capitals is
// its environment variable (WEIR_BROKER_NATS_DIR). The comment above a field in
// the Go source is its documentation everywhere: in the default file, in
// `weir config docs` and in docs/reference/config.md.
//
// The order is file < environment < flags: mappings are merged key by key,
// lists are replaced whole. Keys that do not exist are errors.
//
// Only cmd/weir and internal/app import this package.
package config

//go:generate go test -run ^(TestReferenceIsCurrent|TestEssentialKeysAreFewAndKnown)$ . -update
