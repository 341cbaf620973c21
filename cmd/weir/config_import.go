package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/app"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/migrate"
)

// maxImport is what is read of a file; the translator refuses less.
const maxImport = 2 << 20

func newConfigImport() *cobra.Command {
	var out, env string
	var force, redact bool
	cmd := &cobra.Command{
		Use:   "import centrifugo|mercure|soketi|reverb FILE",
		Short: "Translate the configuration of another server",
		Long: `Import translates a configuration file of another server into one of Weir, with
a comment beside each value whose meaning differs slightly. It reports on standard
error what could not be translated: every key of the input is either used, or listed
with a reason and, if there is one, an alternative.

  centrifugo  configuration of version 5 or 6: .json, .yaml, .toml, or variables: .env
  mercure     a Caddyfile, or the variables of the hub's container: .env
  soketi      configuration: .json, or variables: .env
  reverb      variables of the Laravel application: .env

The exit status is 0 even if keys were omitted, 1 if the file cannot be read. Secrets
are copied; with --redact they are replaced by placeholders.`,
		Example: `  weir config import centrifugo config.json > weir.yaml
  weir config import mercure Caddyfile --env .env --out weir.yaml
  weir config import soketi soketi.json --redact`,
		Args: cobra.ExactArgs(2),

		DisableFlagsInUseLine: true,
	}
	flags := cmd.Flags()
	flags.StringVar(&out, "out", "", "`file` to write (default: standard output)")
	flags.BoolVar(&force, "force", false, "overwrite --out if it exists")
	flags.BoolVar(&redact, "redact", false, "write placeholders in place of secrets")
	flags.StringVar(&env, "env", "", ".env `file` with variables that the file refers to, or that override it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o := migrate.Options{Redact: redact, EnvName: env}
		data, err := readImport(args[1])
		if err != nil {
			return err
		}
		if env != "" {
			if o.Env, err = readImport(env); err != nil {
				return err
			}
		}
		r, err := migrate.Translate(migrate.Kind(args[0]), args[1], data, o)
		if err != nil {
			return err
		}
		if err := writeImport(cmd.OutOrStdout(), out, force, r.YAML); err != nil {
			return err
		}
		fmt.Fprint(cmd.ErrOrStderr(), r.Report())
		return reportInvalid(cmd.ErrOrStderr(), r.YAML)
	}
	return cmd
}

func readImport(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxImport))
}

// writeImport writes a file that only its owner may read: it holds secrets.
func writeImport(stdout io.Writer, name string, force bool, data []byte) error {
	if name == "" {
		_, err := stdout.Write(data)
		return err
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if !force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	}
	f, err := os.OpenFile(name, flags, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return config.WithHint(fmt.Errorf("%s exists already", name), "--force overwrites it")
	}
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

// reportInvalid reports what config check would: files that are not on this machine.
func reportInvalid(w io.Writer, data []byte) error {
	dir, err := os.MkdirTemp("", "weir-import-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // it is in the directory for such things
	name := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		return err
	}
	c, _, err := config.Read(config.Sources{File: name})
	if err != nil {
		return err
	}
	if err = c.Validate(); err == nil {
		err = app.Check(c)
	}
	for i, p := range config.Problems(err) {
		if i == 0 {
			fmt.Fprint(w, "\nconfig check is not content yet:\n")
		}
		fmt.Fprintf(w, "  %v\n", p)
	}
	return nil
}
