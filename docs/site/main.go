// Command site renders the documentation as a static site that works from a web server and
// from file:// alike:
//
//	go run . -root ../.. -out ../../site
//
// Its pages are all of docs/ and every page of Markdown that one of them links to. It is a
// module of its own, so that Weir does not depend on the Markdown library.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", "../..", "the checkout")
	out := flag.String("out", "../../site", "folder to write; its files are overwritten, others stay")
	flag.Parse()
	s, err := load(*root)
	if err == nil {
		err = s.write(*out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
	fmt.Printf("%d pages, %d other files: %s/index.html\n", len(s.pages), len(s.assets), *out)
}
