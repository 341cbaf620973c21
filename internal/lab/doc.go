// Package lab rebuilds tuning ladders as experiments that anyone can run.
package lab
