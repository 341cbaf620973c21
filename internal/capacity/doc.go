// Package capacity finds how much a server carries: the knee, honestly, with what is not known.
package capacity
