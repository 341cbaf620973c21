// Proxy runs the gateway, nginx, HAProxy, Go's ReverseProxy and an unparsed relay in
// C in turn under the same load, and prints what each costs beside the others.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	listen := flag.String("serve", "", "be the gateway that is measured, on this address")
	peer := flag.String("peer", "", "its backend")
	engine := flag.String("engine", "", "its engine")
	flag.Parse()
	if err := serve(*listen, *peer, *engine); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
