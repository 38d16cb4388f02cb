#include "textflag.h"

// The stack has the number of arguments, their addresses and NULL. The bytes after the first argument can be read: the
// program's path is the last text there.
TEXT ·entry(SB),NOSPLIT|NOFRAME|TOPFRAME,$0-0
	MOVQ	SP, BX
	CMPQ	0(BX), $2
	JLT	other
	MOVQ	16(BX), AX
	MOVQ	(AX), AX
	SHLQ	$8, AX
	MOVQ	$0x0074696e695f5f00, CX // "__init" and its end, after one byte
	CMPQ	AX, CX
	JNE	other
	JMP	_rt0_amd64_linux(SB)
other: // with a timer slack, see internal/timerslack
	MOVL	$157, AX // prctl
	MOVL	$30, DI  // PR_GET_TIMERSLACK
	SYSCALL
	CMPQ	AX, $50000
	JNE	start
	MOVL	$157, AX
	MOVL	$29, DI // PR_SET_TIMERSLACK
	MOVL	$500003, SI
	SYSCALL
start:
	XORL	DX, DX
	MOVQ	elsewhere<>(SB), AX
	JMP	AX

DATA elsewhere<>+0(SB)/8, $0x7a2d78756d706574
GLOBL elsewhere<>(SB), RODATA|NOPTR, $8
