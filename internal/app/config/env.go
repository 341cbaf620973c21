package config

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// envPrefix starts the name of every variable of ours.
const envPrefix = "WEIR_"

// envName is the variable of a path: "broker.nats.dir" → WEIR_BROKER_NATS_DIR.
func envName(path string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// CommandEnv are the WEIR_* variables that are no configuration keys: the
// command line reads them in place of a flag.
var CommandEnv = []struct{ Name, Flag, Doc string }{
	{"WEIR_CONFIG", "--config", "path of the configuration file"},
	{"WEIR_URL", "--url", "where pub and sub find the server"},
	{"WEIR_TOKEN", "--token", "the token sub and pub present"},
	{"WEIR_API_KEY", "--api-key", "the API key pub presents"},
}

// orchestratorEnv matches what Kubernetes sets in every pod of a namespace with
// a Service called weir or weir-something. Those are not ours to refuse.
var orchestratorEnv = regexp.MustCompile(
	`^WEIR(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

// readEnv lays the WEIR_* variables over v.
func readEnv(env []string, keys []key, v reflect.Value, origins Origins) []error {
	env = slices.Clone(env)
	slices.Sort(env) // problems come in an order that does not depend on the shell
	var problems []error
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, envPrefix) || value == "" {
			continue
		}
		d := &decoder{source: name, root: v.Type(), origins: origins}
		i := slices.IndexFunc(keys, func(k key) bool { return k.env == name })
		old, p, isOld := deprecatedEnv(name)
		switch {
		case i >= 0:
			d.plain(value, keys[i], v)
		case isOld:
			d.scalarOf(old, value, p, keys, v)
		case !isCommandEnv(name) && !orchestratorEnv.MatchString(name):
			hint := suggestEnv(name, keys)
			if now := renamedEnv(name); now != "" {
				hint = now
			}
			d.problem(nil, "", hint, "unknown variable")
		}
		problems = append(problems, d.problems...)
	}
	return problems
}

func isCommandEnv(name string) bool {
	for _, e := range CommandEnv {
		if e.Name == name {
			return true
		}
	}
	return false
}

func suggestEnv(name string, keys []key) string {
	var names []string // without the prefix, which all share
	for _, k := range keys {
		if k.env != "" {
			names = append(names, strings.TrimPrefix(k.env, envPrefix))
		}
	}
	for _, e := range CommandEnv {
		names = append(names, strings.TrimPrefix(e.Name, envPrefix))
	}
	name = strings.TrimPrefix(name, envPrefix)
	for _, n := range names {
		if strings.HasSuffix(n, "_"+name) {
			return "did you mean " + envPrefix + n + "?"
		}
	}
	if s := nearest(name, names); s != "" {
		return "did you mean " + envPrefix + s + "?"
	}
	return "unset it; weir config docs --all lists all variables"
}
