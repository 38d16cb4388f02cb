// Package bigstack gives a goroutine a large stack at once. Otherwise the Go runtime makes it larger step by step: each
// step copies the stack to one of twice the size, reads the tables of all functions on it, and takes memory for more
// stacks of that size.
package bigstack

// size is more than the goroutines need for which Grow is called.
const size = 24 << 10

// Grow makes the stack of this goroutine larger at once.
func Grow() { grow(false) }

// grow has the runtime make room for its variable when it is called. It fills that only if fill is true, since memory
// that is never written takes no page.
//
//go:noinline
func grow(fill bool) {
	if fill {
		var room [size]byte
		use(&room)
	}
}

//go:noinline
func use(*[size]byte) {}
