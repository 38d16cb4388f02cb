#include "textflag.h"

// As on amd64.
TEXT ·programEntry(SB),NOSPLIT|NOFRAME|TOPFRAME,$0-0
	MOVD	$167, R8 // prctl
	MOVD	$30, R0  // PR_GET_TIMERSLACK
	SVC
	MOVD	$50000, R1
	CMP	R0, R1
	BNE	start
	MOVD	$29, R0 // PR_SET_TIMERSLACK
	MOVD	$500003, R1
	SVC
start:
	B	_rt0_arm64_linux(SB)
