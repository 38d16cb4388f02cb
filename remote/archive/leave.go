package archive

import (
	"fmt"
	"sync"

	"github.com/stepmux/stepmux/internal/oserr"
)

// maxLeft bounds the lines about files that cannot be read.
const maxLeft = 10

// leaver tells about the files that are left out of archives, once for each file, although the files may be packed
// several times.
type leaver struct {
	warn func(text string)

	mu   sync.Mutex // guards the following
	told map[string]bool
	left map[string]bool
	more int // files that had no line
}

// Leave leaves the file name out of all archives from now on, because of err, and tells Warn.
func (f *Files) Leave(name string, err error) {
	f.leave.mu.Lock()
	if f.leave.left == nil {
		f.leave.left = map[string]bool{}
	}
	f.leave.left[name] = true
	f.leave.mu.Unlock()
	f.leave.say(name, fmt.Sprintf("%s: left out: %v", name, oserr.Bare(err)))
}

// has reports whether the file is left out.
func (l *leaver) has(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.left[name]
}

// say warns about a file, at most once.
func (l *leaver) say(name, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.told[name] {
		return
	}
	if l.told == nil {
		l.told = map[string]bool{}
	}
	l.told[name] = true
	if len(l.told) > maxLeft {
		l.more++
		return
	}
	l.warn(text)
}

// end warns about the number of the other files.
func (l *leaver) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.more > 0 {
		l.warn(fmt.Sprintf("%d more files cannot be archived, or only in part", l.more))
		l.more = 0
	}
}
