package mask

// span is a range of bytes that all belong to secrets. Its ends are relative to the current piece; earlier bytes have
// negative positions.
type span struct {
	from, to int
	shown    bool // its replacement has been written
}

// spans are in order and do not overlap.
type spans []span

// add adds the last length bytes before end. Spans that overlap become one.
func (s *spans) add(end, length int) {
	add := span{from: end - length, to: end}
	all := *s
	for len(all) > 0 && all[len(all)-1].to > add.from {
		last := all[len(all)-1]
		add.from, add.to = min(add.from, last.from), max(add.to, last.to)
		add.shown = add.shown || last.shown
		all = all[:len(all)-1]
	}
	*s = append(all, add)
}

// move makes the spans relative to a place n bytes further on.
func (s spans) move(n int) {
	for i := range s {
		s[i].from -= n
		s[i].to -= n
	}
}
