// Package governor watches the process from within: runtime and machine, the state
// of the load (steady, alert, inflection), evidence of what happened, memory.
package governor
