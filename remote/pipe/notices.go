package pipe

import (
	"fmt"
	"io"
	"sync"
)

// Notices writes notices, one line each, to a writer. It ignores errors, because no operation depends on a notice. It
// is safe for concurrent use.
type Notices struct {
	mu sync.Mutex // serialises writes
	w  io.Writer
}

// NewNotices returns Notices that go to w.
func NewNotices(w io.Writer) *Notices { return &Notices{w: w} }

// Printf writes one notice.
func (n *Notices) Printf(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, _ = io.WriteString(n.w, "step-runner: "+fmt.Sprintf(format, args...)+"\n")
}
