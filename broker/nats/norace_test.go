//go:build !race

package nats

const raced = false
