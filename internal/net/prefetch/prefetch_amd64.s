#include "textflag.h"

// func read(p uintptr)
TEXT ·read(SB), NOSPLIT|NOFRAME, $0-8
	MOVQ p+0(FP), AX
	PREFETCHT0 (AX)
	RET
