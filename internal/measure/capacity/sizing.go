package capacity

import (
	"fmt"
	"math"

	"github.com/weir-gateway/weir/internal/measure/report"
)

// A Demand is what a Sizing is for.
type Demand struct {
	// Clients to serve, and how many requests per second each makes (with pubsub, messages
	// it receives). Both are above 0.
	Clients   float64 `json:"clients"`
	PerClient float64 `json:"per_client"`
	// Price of a machine for any time, in any currency; 0 means unknown.
	Price float64 `json:"price,omitempty"`
}

// Validate reports a Demand that no machine count follows from.
func (d Demand) Validate() error {
	switch {
	case !(d.Clients >= 1) || math.IsInf(d.Clients, 0):
		return fmt.Errorf("clients %v: want 1 or more", d.Clients)
	case !(d.PerClient > 0) || math.IsInf(d.PerClient, 0):
		return fmt.Errorf("rate per client %v: want more than 0 per second", d.PerClient)
	case !(d.Price >= 0) || math.IsInf(d.Price, 0):
		return fmt.Errorf("price %v: want 0 or more", d.Price)
	}
	return nil
}

// A Sizing is how many machines like the target's a Demand takes.
type Sizing struct {
	Demand
	// Rate of all clients together, and what one machine carries at the recommended
	// operating point, in the same unit: requests or, with pubsub, deliveries per second.
	Rate       float64 `json:"rate"`
	PerMachine float64 `json:"per_machine"`
	// Machines that carry the rate; 0 means unknown, for want of an operating point.
	Machines int `json:"machines"`
}

// Size sets the report's Sizing. fanout is how many clients each request of the search
// reached: 1, and with pubsub the subscribers of a channel. conns is how many were connected.
func (r *Report) Size(d Demand, fanout float64, conns int) {
	z := &Sizing{Demand: d, Rate: d.Clients * d.PerClient, PerMachine: r.Recommended * fanout}
	r.Sizing = z
	if z.PerMachine <= 0 {
		return
	}
	// A rate that a machine carries exactly takes no second one by rounding.
	z.Machines = int(math.Ceil(z.Rate/z.PerMachine - 1e-9))
	if on := int(math.Ceil(z.Clients / float64(z.Machines))); on > conns {
		r.Notes = append(r.Notes, fmt.Sprintf("sizing: %s clients on a machine, and only %s connections were open during the search; measure memory with more",
			report.Grouped(uint64(on)), report.Grouped(uint64(max(conns, 0)))))
	}
}

// Text is the sizing in a sentence, as in "5,000 clients at 0.2/s each take 1k/s: 1 machine
// like the target's …".
func (z *Sizing) Text() string {
	text := fmt.Sprintf("%s clients at %s each take %s: ", report.Grouped(uint64(z.Clients)), report.PerSec.Format(z.PerClient), report.PerSec.Format(z.Rate))
	if z.Machines == 0 {
		return text + "machines unknown, since there is no operating point"
	}
	noun := "machines"
	if z.Machines == 1 {
		noun = "machine"
	}
	each := uint64(z.PerMachine/z.PerClient + 1e-9)
	return text + fmt.Sprintf("%d %s like the target's, %d so that one may fail; up to %s clients on each", z.Machines, noun, z.Machines+1, report.Grouped(each))
}

// Cost is the price in a sentence; empty if it is not known.
func (z *Sizing) Cost() string {
	if z.Machines == 0 || z.Price <= 0 {
		return ""
	}
	total := z.Price * float64(z.Machines)
	return fmt.Sprintf("price %.6g, or %.3g per client; %.6g and %.3g with one more machine", total, total/z.Clients, total+z.Price, (total+z.Price)/z.Clients)
}
