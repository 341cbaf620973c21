package observer

import "embed"

// objects are the programs of bpf, compiled for this architecture by make observer.
//
//go:embed *_arm64_bpfel.o
var objects embed.FS

const architecture = "_arm64_bpfel.o"
