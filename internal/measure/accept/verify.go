package accept

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
)

// Verify holds a run's directory against its hash chain and judges its evidence again. head
// is the chain's as it was noted when the run ended; empty: any. The error names each file
// that is not as it was written, and each verdict that the evidence does not give.
func Verify(dir, head string) (*Report, error) {
	names, found, err := checkChain(dir)
	if err != nil {
		return nil, err
	}
	if head != "" && head != found {
		return nil, fmt.Errorf("the chain ends in %s, not in %s: it was written anew, or lines are missing at its end", found, head)
	}
	if !slices.Contains(names, reportFile) {
		return nil, fmt.Errorf("%s is not in the chain: the run did not end", reportFile)
	}
	r := &Report{}
	if err := readJSON(filepath.Join(dir, reportFile), r); err != nil {
		return nil, err
	}
	if r.Version != version {
		return nil, fmt.Errorf("report of version %d: this program reads version %d", r.Version, version)
	}
	r.Head = found
	return r, errors.Join(reverdict(dir, names, r)...)
}

func readJSON(file string, into any) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// reverdict judges the evidence of each finding again.
func reverdict(dir string, names []string, r *Report) (wrong []error) {
	all := Verdict("")
	for _, f := range r.Findings {
		list, err := Find(f.Indicator)
		switch {
		case err != nil:
			wrong = append(wrong, err)
			continue
		case !slices.Contains(names, f.Evidence):
			wrong = append(wrong, fmt.Errorf("%s: its evidence, %q, is not in the chain", f.Indicator, f.Evidence))
			continue
		}
		e := &Evidence{}
		if err := readJSON(filepath.Join(dir, filepath.FromSlash(f.Evidence)), e); err != nil {
			wrong = append(wrong, err)
			continue
		}
		for _, name := range e.Files {
			if !slices.Contains(names, name) {
				wrong = append(wrong, fmt.Errorf("%s: its file %q is not in the chain", f.Indicator, name))
			}
		}
		again := list[0].evaluate(e)
		again.Evidence = f.Evidence
		// Through JSON, as the report's own has been.
		if b, err := json.Marshal(again); err == nil {
			again = Finding{}
			err = json.Unmarshal(b, &again)
			if err != nil || !reflect.DeepEqual(again, f) {
				wrong = append(wrong, fmt.Errorf("%s: the report says %s, its evidence gives %s (or other reasons)", f.Indicator, f.Verdict, again.Verdict))
			}
		}
		all = worse(all, again.Verdict)
	}
	if !r.Partial && all != r.Verdict {
		wrong = append(wrong, fmt.Errorf("the report's verdict is %s, its findings give %s", r.Verdict, all))
	}
	return wrong
}
