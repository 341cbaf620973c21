package config

// A Preview reports what a reload would change.
type Preview struct {
	Changes []Change `json:"changes"`
	// Applied are the keys that would take effect, Waiting those that would wait for a
	// restart.
	Applied []string `json:"applied"`
	Waiting []string `json:"waiting_for_restart"`
	// Closing counts the connections to a running node whose rights the reload would take
	// away; nil: there is no node to ask.
	Closing *Closing `json:"closing"`
}

// Closing counts connections by what they speak.
type Closing struct {
	Connections int            `json:"connections"`
	Protocols   map[string]int `json:"protocols"`
}

// NewPreview compares what runs with what a reload would read.
func NewPreview(running, wanted Config) Preview {
	changes := Diff(running, wanted)
	if changes == nil {
		changes = []Change{}
	}
	return Preview{Changes: changes, Applied: Applied(changes), Waiting: Waiting(changes)}
}
