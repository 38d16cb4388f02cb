package linger

import "sync"

// maxNotices bounds the notices that are kept, in bytes. Older ones are dropped.
const maxNotices = 64 << 10

// notices keeps the last lines of serve's output, by their byte offset. It is an io.Writer, which never fails.
type notices struct {
	mu    sync.Mutex // guards the following
	first int64      // offset of kept[0]
	kept  []byte
	more  chan struct{} // closed with the next Write, then replaced
}

// Write implements io.Writer.
func (n *notices) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kept = append(n.kept, p...)
	if over := len(n.kept) - maxNotices; over > 0 {
		n.kept = append(n.kept[:0], n.kept[over:]...)
		n.first += int64(over)
	}
	close(n.more)
	n.more = make(chan struct{})
	return len(p), nil
}

// since returns the notices from offset on, or all that are kept if offset is older. begin is their offset. more is
// closed when there are more.
func (n *notices) since(offset int64) (text []byte, begin int64, more <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	end := n.first + int64(len(n.kept))
	begin = min(max(offset, n.first), end)
	return append([]byte(nil), n.kept[begin-n.first:]...), begin, n.more
}
