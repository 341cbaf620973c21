package admin

import "time"

// Certificate is one that the public listener serves, or is to obtain by ACME.
type Certificate struct {
	// Name is its first name. Names are all DNS names and addresses in it.
	Name  string   `json:"name"`
	Names []string `json:"names"`
	// Source is "file" or "acme"; File is the file.
	Source string `json:"source"`
	File   string `json:"file,omitempty"`
	// Served reports that there is one; without, all to RenewAt are empty.
	Served    bool      `json:"served"`
	Issuer    string    `json:"issuer,omitempty"`
	Serial    string    `json:"serial,omitempty"`
	NotBefore time.Time `json:"not_before,omitzero"`
	NotAfter  time.Time `json:"not_after,omitzero"`
	// StapledUntil is when the stapled OCSP response expires.
	StapledUntil time.Time `json:"stapled_until,omitzero"`
	MustStaple   bool      `json:"must_staple"`
	// RenewAt is when another is ordered, Explanation a URL by the CA about that time.
	RenewAt     time.Time `json:"renew_at,omitzero"`
	Explanation string    `json:"explanation,omitempty"`
	// Failures counts the failed orders in a row, Error is the last one's, RetryAt when the
	// next is tried.
	Failures int       `json:"failures"`
	Error    string    `json:"error,omitempty"`
	RetryAt  time.Time `json:"retry_at,omitzero"`
}
