package tune

import "strconv"

func conntrackBuckets() Check {
	return Check{
		Name: "net.netfilter.nf_conntrack_buckets", Area: Conntrack,
		Gone: "connection tracking is not loaded, so there is nothing to look up",
		Doc: Doc{
			Threshold: "at most four entries per bucket",
			Source:    "Documentation/networking/nf_conntrack-sysctl.rst: nf_conntrack_buckets",
			Since:     "2.6.20; writable since 4.8, in the first network namespace only",
			Risk:      "the table is built anew, which briefly takes the 8 bytes per bucket twice",
		},
		Worth: Worth{None: "no experiment here tracks connections"},
		evaluate: func(p *probe, now string) verdict {
			buckets, err := strconv.ParseInt(now, 10, 64)
			count, _ := p.number("net.netfilter.nf_conntrack_count")
			if err != nil || buckets <= 0 {
				return watch("%q is not a number of buckets", now)
			}
			if count <= 4*buckets {
				return good("%.1f entries per bucket", float64(count)/float64(buckets))
			}
			want := strconv.FormatInt(count/2, 10)
			if p.nested() {
				return watch("%.1f entries per bucket; the host sets it (%s)", float64(count)/float64(buckets), want)
			}
			return change(want, "%.1f entries per bucket: every packet compares that many", float64(count)/float64(buckets))
		},
	}
}
