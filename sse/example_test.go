package sse_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"strings"

	"github.com/weir-gateway/weir/sse"
)

func ExampleAppendEvent() {
	b := sse.AppendEvent(nil, &sse.Event{ID: []byte("7"), HasID: true, Type: []byte("price"), Data: []byte("two\nlines"), HasData: true})
	fmt.Printf("%s", b)
	// Output:
	// id: 7
	// event: price
	// data: two
	// data: lines
}

func ExampleReader() {
	r := sse.NewReader(strings.NewReader("id: 1\ndata: hello\n\nid: 2\ndata: world\n\n"))
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s %s\n", e.ID, e.Data)
	}
	// Output:
	// 1 hello
	// 2 world
}
