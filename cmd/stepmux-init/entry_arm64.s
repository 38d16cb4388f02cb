#include "textflag.h"

// As on amd64.
TEXT ·entry(SB),NOSPLIT|NOFRAME|TOPFRAME,$0-0
	MOVD	RSP, R1
	MOVD	0(R1), R0
	CMP	$2, R0
	BLT	other
	MOVD	16(R1), R0
	MOVD	(R0), R0
	LSL	$8, R0, R0
	MOVD	$0x0074696e695f5f00, R2 // "__init" and its end, after one byte
	CMP	R0, R2
	BNE	other
	B	_rt0_arm64_linux(SB)
other: // with a timer slack, see internal/timerslack
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
	MOVD	elsewhere<>(SB), R0
	B	(R0)

DATA elsewhere<>+0(SB)/8, $0x7a2d78756d706574
GLOBL elsewhere<>(SB), RODATA|NOPTR, $8
