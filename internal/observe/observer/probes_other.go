//go:build !amd64 && !arm64

package observer

// kernel has no programs for this architecture.
type kernel struct{}

func newKernel(int, string) *kernel { return &kernel{} }

func (*kernel) close()                   {}
func (*kernel) poll(int)                 {}
func (*kernel) setPorts(map[uint16]bool) {}

func (*kernel) report(r *Report, n int) {
	r.Probes = append(r.Probes, Probe{Name: "eBPF", Why: "not built for this architecture; what /proc has is there"})
	r.RunQueue = (&history{}).series(n)
}
