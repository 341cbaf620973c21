package config

import (
	"reflect"
	"slices"
)

// live are the sections that a running server takes over.
var live = []string{"routes", "clusters", "splits"}

// Changed returns the sections in which two configurations differ: those that a
// running server takes over, and those that wait for its next start.
func Changed(old, now Config) (taken, waiting []string) {
	taken, waiting = []string{}, []string{} // in JSON a list even where it is empty
	a, b := reflect.ValueOf(old), reflect.ValueOf(now)
	for _, f := range fieldsOf(a.Type()) {
		switch {
		case reflect.DeepEqual(a.FieldByIndex(f.index).Interface(), b.FieldByIndex(f.index).Interface()):
		case slices.Contains(live, f.key):
			taken = append(taken, f.key)
		default:
			waiting = append(waiting, f.key)
		}
	}
	return taken, waiting
}
