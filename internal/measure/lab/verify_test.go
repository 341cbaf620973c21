package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// scripted measures by table: the ratio of fast to slow, and how far the rounds are apart.
func scripted(ratio, noise float64) func(context.Context, *Ladder, *Experiment, Arm, int) (Values, error) {
	return func(_ context.Context, _ *Ladder, _ *Experiment, a Arm, round int) (Values, error) {
		wave := []float64{1, noise, 1 / noise}[round%3]
		switch a.Name {
		case "slow":
			return Values{"cpu": 20e-6 * wave, "rate": 1000}, nil
		case "fast":
			return Values{"cpu": 20e-6 / ratio, "rate": 1000 * ratio * wave}, nil
		}
		return Values{"cpu": 20e-6 / ratio}, nil
	}
}

// verified writes the page of the tiny ladder as the first measurer has it, and verifies it by the second.
func verified(t *testing.T, page, now func(context.Context, *Ladder, *Experiment, Arm, int) (Values, error)) *Verification {
	t.Helper()
	dir, l := t.TempDir(), tiny()
	if err := reading(t, l, Options{Measure: page}).Write(dir); err != nil {
		t.Fatal(err)
	}
	var got []*Verification
	err := Verify(t.Context(), []Ladder{l}, dir, Options{Rounds: 4, Measure: now}, func(v *Verification) error {
		got = append(got, v)
		return nil
	})
	if err != nil || len(got) != 1 {
		t.Fatalf("%d verifications, %v", len(got), err)
	}
	return got[0]
}

func TestRepetitionSaysWhetherAPageHolds(t *testing.T) {
	page := scripted(2, 1.01)
	f := func(want Outcome, why string, now func(context.Context, *Ladder, *Experiment, Arm, int) (Values, error)) {
		t.Helper()
		v := verified(t, page, now)
		all := v.Why
		for _, c := range v.Checks {
			all += "\n" + c.Why
		}
		if v.Outcome != want || !strings.Contains(all, why) {
			t.Errorf("%s, want %s because %q:\n%s", v.Outcome, want, why, all)
		}
	}
	f(Holds, "4 of 4 hold", scripted(2, 1.02))
	f(Holds, "4 of 4 hold", scripted(2.4, 1.02)) // another machine
	f(Changed, "a change of 1.9", scripted(4, 1.01))
	f(Changed, "a change of 0.6", scripted(1.25, 1.01))
	f(Changed, "the opposite", scripted(0.9, 1.01))
	f(Inconclusive, "too noisy for a verdict", scripted(2, 3))
	f(Inconclusive, "not measured now", func(context.Context, *Ladder, *Experiment, Arm, int) (Values, error) {
		return nil, errors.New("broken")
	})

	page = scripted(2, 3)
	f(Inconclusive, "the page is too unsure", scripted(2, 1.01))
}

func TestNothingLeftHoldsIfNothingIsLeftAgain(t *testing.T) {
	none := func(side string) func(context.Context, *Ladder, *Experiment, Arm, int) (Values, error) {
		return func(_ context.Context, _ *Ladder, _ *Experiment, a Arm, _ int) (Values, error) {
			v := Values{"cpu": 2e-6, "rate": 1000}
			if a.Name == side {
				v["cpu"] = 0
			}
			return v, nil
		}
	}
	f := func(want Outcome, why string, now func(context.Context, *Ladder, *Experiment, Arm, int) (Values, error)) {
		t.Helper()
		if c := verified(t, none("fast"), now).Checks[0]; c.Outcome != want || c.Why != why {
			t.Errorf("%s, %q; want %s, %q", c.Outcome, c.Why, want, why)
		}
	}
	f(Holds, "0 with it then and now", none("fast"))
	f(Changed, "0 with it then, 0 without it now", none("slow"))
	f(Inconclusive, "the page has no ratio for it", none(""))
}

func TestDoubtThatTurnsIsAChange(t *testing.T) {
	l := tiny()
	then, now := reading(t, l, Options{Measure: scripted(2, 1.01)}), reading(t, l, Options{Measure: scripted(10, 1.01)})
	if c := checkDoubt(l.Doubts[0], then, now); c.Outcome != Changed || c.Why != "upheld then, not upheld now" {
		t.Errorf("%+v", c)
	}
	if c := checkDoubt(l.Doubts[0], then, then); c.Outcome != Holds {
		t.Errorf("%+v", c)
	}
	none := &Reading{Ladder: &l, Result: &Result{}}
	if c := checkDoubt(l.Doubts[0], then, none); c.Outcome != Inconclusive {
		t.Errorf("%+v", c)
	}
}

func TestWithoutAPageNothingIsMeasured(t *testing.T) {
	measure := func(context.Context, *Ladder, *Experiment, Arm, int) (Values, error) {
		t.Error("measured")
		return nil, nil
	}
	var got *Verification
	keep := func(v *Verification) error { got = v; return nil }
	dir, l := t.TempDir(), tiny()
	if err := Verify(t.Context(), []Ladder{l}, dir, Options{Measure: measure}, keep); err != nil || got == nil || got.Outcome != Inconclusive || got.Page != "" {
		t.Errorf("%+v, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tiny.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Verify(t.Context(), []Ladder{l}, dir, Options{Measure: measure}, keep); err == nil || !strings.Contains(err.Error(), "tiny.json") {
		t.Errorf("a page that cannot be read: %v", err)
	}
}

func TestStoppedVerificationSaysNothingOfTheRest(t *testing.T) {
	dir, l := t.TempDir(), tiny()
	if err := reading(t, l, Options{Measure: fakes}).Write(dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	measure := func(ctx context.Context, l *Ladder, e *Experiment, a Arm, round int) (Values, error) {
		if n++; n == 4 {
			cancel()
		}
		return fakes(ctx, l, e, a, round)
	}
	err := Verify(ctx, []Ladder{l}, dir, Options{Measure: measure}, func(v *Verification) error {
		t.Errorf("a verification of half a run: %+v", v)
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}
