package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// payload makes the JSON to publish from what is on the command line or in
// a line of input. JSON is published as it is. Other text becomes a JSON string,
// which isText reports; but what starts like an object, a list or a string and is
// none was surely meant as JSON, and is an error.
func payload(text string, forceText bool) (data json.RawMessage, isText bool, err error) {
	if !forceText {
		if json.Valid([]byte(text)) {
			return json.RawMessage(strings.TrimSpace(text)), false, nil
		}
		if s := strings.TrimSpace(text); s != "" && strings.ContainsRune(`{["`, rune(s[0])) {
			return nil, false, usage("put JSON in single quotes, or publish the text as a string with --text",
				"pub: %.60q is not JSON: %w", text, json.Unmarshal([]byte(text), new(any)))
		}
	}
	b, err := plainJSON(text)
	if err != nil {
		return nil, false, fmt.Errorf("pub: %w", err)
	}
	return bytes.TrimSuffix(b, []byte("\n")), true, nil
}

// plainJSON is v as a line of JSON without escapes for HTML: a subscriber sees what was typed.
func plainJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}
