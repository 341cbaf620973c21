package observer

import "embed"

// objects are the programs of bpf, compiled for this architecture by make observer.
//
//go:embed *_x86_bpfel.o
var objects embed.FS

const architecture = "_x86_bpfel.o"
