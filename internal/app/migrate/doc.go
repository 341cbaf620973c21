// Package migrate translates the configuration files of other servers into one of
// Weir's, and says what it could not translate.
//
//	r, err := migrate.Translate(migrate.Centrifugo, "config.json", data, migrate.Options{})
//	os.Stdout.Write(r.YAML)
//	os.Stderr.WriteString(r.Report())
//
// The input becomes a tree whose keys are in the form of the newest version of that
// server. The translator takes values from the tree and sets keys of Weir; every key of
// the input that it did not take is looked up among the reasons why not, and those
// without a reason are named as unknown. So no key is lost in silence.
//
// Only cmd/weir imports this package.
package migrate
