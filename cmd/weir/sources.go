package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// sourceFlags are the flags of every command that reads the configuration.
type sourceFlags struct {
	file  string
	sets  []string
	short []shortcut
}

// A shortcut is a flag of its own for a key that is often set.
type shortcut struct {
	flag, key, usage string
	value            string
}

func addSources(cmd *cobra.Command) *sourceFlags {
	s := &sourceFlags{short: []shortcut{
		{flag: "listen", key: "listen", usage: "`address` of the public listener"},
		{flag: "admin-listen", key: "admin.listen", usage: "`address` of the admin listener, or off"},
		{flag: "data-dir", key: "broker.nats.dir", usage: "`directory` of the embedded broker"},
	}}
	fs := cmd.Flags()
	fs.StringVar(&s.file, "config", "", "YAML `file` to read (env WEIR_CONFIG)")
	fs.StringArrayVar(&s.sets, "set", nil, "set one `key=value`, repeatable; overrides file and environment")
	for i := range s.short {
		fs.StringVar(&s.short[i].value, s.short[i].flag, "", s.short[i].usage)
	}
	return s
}

// onSources makes run what cmd does with the sources of the configuration, which flags of their own name.
func onSources(cmd *cobra.Command, run func(cmd *cobra.Command, args []string, src config.Sources) error) *cobra.Command {
	s := addSources(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		src, err := s.sources(cmd.Flags())
		if err != nil {
			return err
		}
		return run(cmd, args, src)
	}
	return cmd
}

// sources returns what to read: --config or WEIR_CONFIG, the environment, the
// flags that were given.
func (s *sourceFlags) sources(fs *pflag.FlagSet) (config.Sources, error) {
	src := config.Sources{File: s.file, Env: os.Environ()}
	if !fs.Changed("config") {
		src.File = os.Getenv("WEIR_CONFIG")
	}
	for _, f := range s.short {
		if fs.Changed(f.flag) {
			src.Flags = append(src.Flags, config.Override{Flag: "--" + f.flag, Key: f.key, Value: f.value})
		}
	}
	for _, text := range s.sets {
		o, err := config.ParseSet(text)
		if err != nil {
			return src, &usageError{err}
		}
		src.Flags = append(src.Flags, o)
	}
	return src, nil
}

// A durationFlag is a flag's value in the notation of the configuration: "30s", "24h", "7d".
type durationFlag time.Duration

func (d *durationFlag) String() string     { return time.Duration(*d).String() }
func (d *durationFlag) Set(s string) error { return (*hub.Duration)(d).UnmarshalText([]byte(s)) }
func (d *durationFlag) Type() string       { return "duration" }

// flagOrEnv returns the flag if it was given, else the variable, else what the
// flag has by default.
func flagOrEnv(fs *pflag.FlagSet, flag, env string) string {
	v, _ := fs.GetString(flag) // every caller has defined it as a string
	if e := os.Getenv(env); e != "" && !fs.Changed(flag) {
		return e
	}
	return v
}
