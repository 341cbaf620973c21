package archtest

import (
	"regexp"
	"strings"
	"testing"
)

// A use is a private use of a word that has ordinary ones as well: only what pattern matches is counted, in the same
// prose as privateWords, outside what except matches and outside the paths that begin with one of in.
type use struct {
	name, instead string
	pattern       *regexp.Regexp
	except        *regexp.Regexp // nil: nothing
	in            []string       // folders and files in which the word is the field's own
}

// setting matches what sets or reports something, but cannot speak.
const setting = `(?:configuration|config|setting|section|namespace|route|flag|option|policy)`

var privateUses = []use{
	{name: "X says", instead: "reports; of a setting: specifies, sets; of a peer: sends",
		// A doc comment whose subject is what it declares, or a setting anywhere. "RFC 9110 says", "as the page says" are English.
		pattern: regexp.MustCompile(`(?m)^// (?:An? |The )?[\w.]+ (?:also |only |never |then )?says (?:that|whether|which|what|where|how|why|when|whose|who|of)\b|\b` + setting + ` says\b`),
		except:  regexp.MustCompile(setting + ` says so\b`)},
	{name: "is no X", instead: "is not a",
		pattern: regexp.MustCompile(`%\.?\d*[qsvT] is no \w+|\bit is no \w+|\bwhich is no \w+`),
		except:  regexp.MustCompile(`is no (?:longer|more|less|fewer|worse|better|limit|way|one|help|answer|room|such|news)\b`)},
	{name: "takes nothing", instead: "accepts nothing, reads nothing",
		pattern: regexp.MustCompile(`(?i)\b(?:socket|reader|client|peer|handler|connection|stream|disk|kernel)s? (?:that |whose socket )?takes? nothing\b|\btakes? everything\b`),
		except:  regexp.MustCompile(`takes? nothing (?:else|back)`)},
	{name: "taken for", instead: "treated as, mistaken for",
		pattern: regexp.MustCompile(`\b(?:not|never|be|is|was|are|were) taken for\b`),
		except:  regexp.MustCompile(`taken for (?:granted|each|two|an hour)\b`)},
	{name: "taken out", instead: "removed, ejected; of text: parsed",
		pattern: regexp.MustCompile(`(?i)\b(?:takes out|taken out|taken off|taken apart)\b`)},
	{name: "gives back", instead: "returns, releases",
		pattern: regexp.MustCompile(`(?i)\bgives (?:it |them )?back\b|\bgives way\b`)},
	{name: "held back", instead: "buffered, throttled, delayed; hold is GRIP's",
		pattern: regexp.MustCompile(`(?i)\b(?:held|holds) (?:back|up|against)\b|\bhold (?:back|up|against)\b`)},
	{name: "is whole", instead: "is complete; of a subscription: wildcard",
		pattern: regexp.MustCompile(`(?i)\b(?:is|was|are|were|be|been|comes|arrives) whole\b|\bwhole subscri\w+`),
		except:  regexp.MustCompile(`whole (?:seconds|numbers|bytes|milliseconds|percent|KiB)`)},
	{name: "begins", instead: "starts",
		pattern: regexp.MustCompile(`\bbegins?\b`)},
	{name: "asked for", instead: "requested, queried",
		pattern: regexp.MustCompile(`(?i)\b(?:asked|asking) for\b|\b(?:is|are|was|were) asked (?:again|once|when|now|by|at|whether|about|first)\b`),
		except:  regexp.MustCompile(`(?i)asked for (?:permission|help)`)},
	{name: "believed", instead: "trusted",
		pattern: regexp.MustCompile(`(?i)\bbelieved?\b`)},
	{name: "judges", instead: "checks, validates, authorizes; a judge from outside is a test suite of others",
		pattern: regexp.MustCompile(`(?i)\bjudges (?:a|an|the|each|every|whether|one|all|two|what|how|it|them|this)\b|\bjudgements?\b`)},
	{name: "beats", instead: "heartbeats; takes precedence over",
		pattern: regexp.MustCompile(`(?i)\bbeats\b`)},
	{name: "moments", instead: "times, instants; of a distribution: moments",
		pattern: regexp.MustCompile(`(?i)\bmoments\b`),
		in:      []string{"internal/measure/stat/", "internal/proxy/upstream/canary"}},
	{name: "vouch", instead: "issue certificates of", pattern: regexp.MustCompile(`(?i)\bvouch(?:es)?\b`)},
	{name: "mend", instead: "fix, repair", pattern: regexp.MustCompile(`(?i)\bmends?\b`)},
	{name: "stand (be)", instead: "appear; of a connection: be established; of a loop: be paused",
		pattern: regexp.MustCompile(`(?i)\b(?:may|can|could|must|cannot|to) stand\b|\bstand (?:still|beside|there|here|on)\b`),
		except:  regexp.MustCompile(`(?i)stand (?:for|in for|alone)\b`)},
	{name: "who (anyone)", instead: "a caller, a client; anyone who",
		pattern: regexp.MustCompile(`\b(?:for|to|by|from|of|with|than) who (?:has|wants|waits|reads|sends|holds|comes|uses|only|looks|signs|would|needs|subscribes|publishes|resumes|connects|asks|makes|calls|passes)\b|(?m)(?:^// |[.;] )[Ww]ho (?:has|holds|comes|reads|waits|sends|uses|resumes|connects|keeps|passes|needs) `),
		except:  regexp.MustCompile(`who (?:reads and who|has|reads|sends)[^.;\n]*\?`)},
	{name: "aimed", instead: "prefetched; targeted",
		pattern: regexp.MustCompile(`(?i)\baimed\b`)},
	{name: "canary (probe)", instead: "probe; canary is a release's",
		pattern: regexp.MustCompile(`(?i)\bcanar(?:y|ies)\b`),
		// Releases, their configuration, documentation and deployment.
		in: []string{"internal/proxy/", "internal/front/", "internal/app/", "internal/observe/admin/", "internal/observe/wingmetrics", "internal/push/", "test/", "deploy/", "docs/", "dashboard/",
			"integrations/", "cmd/weir/top", "ARCHITECTURE.md", "README", "bench/", "hub/", "broker/"}},
	{name: "exchange (not proxied)", instead: "handshake, request, round trip: an exchange is one proxied request",
		pattern: regexp.MustCompile(`(?i)\bexchanges?\b`),
		except:  regexp.MustCompile(`(?i)(?:key|token|code|stock|data) exchanges?|exchanges? (?:of keys|rate)`),
		in: []string{"internal/proxy/", "internal/front/", "internal/app/", "internal/observe/", "internal/net/tlsterm/gm/", "internal/push/", "integrations/", "examples/", "docs/", "test/", "bench/",
			"ARCHITECTURE.md", "hub/", "dashboard/"}},
	{name: "rung, ladder (for users)", instead: "step, experiment",
		pattern: regexp.MustCompile(`(?i)\b(?:rungs?|ladders?)\b`),
		in:      []string{"internal/measure/", "bench/", "cmd/weir-lab", "ARCHITECTURE.md", "test/", "docs/design/"}},
}

// allowed reports whether the word may have any meaning in a file.
func (u *use) allowed(name string) bool {
	for _, p := range u.in {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// count returns how often a text has the private use.
func (u *use) count(text []byte) int {
	if u.except != nil {
		text = u.except.ReplaceAll(text, []byte(" "))
	}
	return len(u.pattern.FindAll(text, -1))
}

func TestPrivateUsesAreDistinguished(t *testing.T) {
	f := func(name, text string, want int) {
		t.Helper()
		for i := range privateUses {
			if u := &privateUses[i]; u.name == name {
				if got := u.count([]byte(text)); got != want {
					t.Errorf("%q in %q: %d, want %d", name, text, got, want)
				}
				return
			}
		}
		t.Errorf("there is no use %q", name)
	}
	f("X says", "// Alone says that no other node writes.", 1)
	f("X says", "what the configuration says is used", 1)
	f("X says", "// RFC 9110 §6.5 says that trailers may be dropped.\n// As the page says, it works if the configuration says so.", 0)
	f("is no X", `"%q is no address"`, 1)
	f("is no X", "there is no address, and it is no longer used", 0)
	f("takes nothing", "a reader that takes nothing", 1)
	f("takes nothing", "it takes the lock, takes two seconds and takes effect", 0)
	f("taken for", "it is not taken for a retry", 1)
	f("taken for", "the lock is taken for two writes, and each is taken", 0)
	f("taken out", "it is taken out of the rotation", 1)
	f("taken out", "it is taken at the start", 0)
	f("gives back", "it gives back the buffer", 1)
	f("gives back", "it gives up, and gives each a number", 0)
	f("held back", "the client is held back", 1)
	f("held back", "mu is held; a hold of GRIP holds the stream", 0)
	f("is whole", "once the reply is whole", 1)
	f("is whole", "the whole reply, as a whole, in whole seconds", 0)
	f("begins", "where the stream begins", 1)
	f("begins", "-----BEGIN CERTIFICATE----- at the beginning", 0)
	f("asked for", "what was asked for", 1)
	f("asked for", "the price asked", 0)
	f("judges", "it judges whether it may", 1)
	f("judges", "suites of others are judges from outside", 0)
	f("stand (be)", "it cannot stand in a header", 1)
	f("stand (be)", "a fake can stand in for it; a stand-alone server", 0)
	f("who (anyone)", "for who wants more", 1)
	f("who (anyone)", "clients who want more; it logs who made it", 0)
	f("exchange (not proxied)", "the exchange of bytes", 1)
	f("exchange (not proxied)", "ECDHE key exchange", 0)
}
