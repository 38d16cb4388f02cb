package pipe

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Conceal prevents other processes of our user from attaching to this one and from reading its memory, its environment
// and its open files in /proc (PR_SET_DUMPABLE, prctl(2)). Jobs run as our user, and the secrets of builds pass through
// this process. It also disables core dumps. It is never undone, because secrets stay in memory. It does not stop root,
// or a process that was attached before.
func Conceal() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide this process from others: %w", err)
	}
	return nil
}
