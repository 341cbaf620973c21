// Package chaos breaks a running Weir in every way of a list, one row each: kill -9, power
// loss, cut and slow networks, full disks, clocks that jump. Each row proves that its fault
// happened, and the history of everything published and received decides.
//
// CI runs a few rows in a short form; all of them are
//
//	make chaos                                # the numbers of docs/chaos.md, as root
//	go test ./test/chaos -chaos -rows 3,9     # some rows
//	go test ./test/chaos -chaos -seed 42      # the same random choices again
package chaos
