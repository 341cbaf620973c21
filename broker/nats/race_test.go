//go:build race

package nats

const raced = true
