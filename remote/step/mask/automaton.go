package mask

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
)

// automaton finds all occurrences of its patterns. It does not change.
//
// It is a trie: a tree of the patterns' prefixes. A node stands for the text on the way to it from the root, node 0;
// the length of that text is its depth. Nodes are numbered breadth first: a node's children follow each other, and so
// do their children. So the tree is a few slices, with 18 bytes for each node.
type automaton struct {
	label []byte  // of the edge to the node
	child []int32 // the first child; the next node's first child is one past the last
	fail  []int32 // the longest proper suffix of the node's text that is a node too
	depth []int32
	match []int32 // the length of the longest pattern that the node's text ends with, 0 if there is no such pattern
	show  []uint8 // bytes of the node's text that may be shown: a quarter of any pattern with this prefix, at most 3

	// The first four bytes of all patterns, which have at least four: a bitmap of their hashes, and a table of them
	// with their nodes, at the index of the hash or after it.
	filter []uint64
	keys   []uint32
	nodes  []int32
	shift  int // of a hash to an index of filter's bits
	slots  int // of a hash to an index of keys
}

// build returns the automaton of patterns, each of at least minLen bytes.
func build(patterns []string) *automaton {
	patterns = slices.Clone(patterns)
	slices.Sort(patterns)
	patterns = slices.Compact(patterns)
	a := &automaton{}
	if len(patterns) > 0 {
		a.grow(patterns)
		a.allow()
		a.link()
		a.index(patterns)
	}
	return a
}

// empty reports whether there are no patterns.
func (a *automaton) empty() bool { return len(a.label) == 0 }

// grow makes the nodes. The patterns with the same prefix stand beside each other.
func (a *automaton) grow(patterns []string) {
	type span struct{ from, to int } // of patterns
	level, next := []span{{0, len(patterns)}}, []span{}
	a.label, a.depth, a.match = []byte{0}, []int32{0}, []int32{0}
	for depth := 0; len(level) > 0; depth++ {
		next = next[:0]
		for _, s := range level {
			a.child = append(a.child, int32(len(a.label)))
			from := s.from
			if len(patterns[from]) == depth { // the shortest comes first
				from++
			}
			for from < s.to {
				c := patterns[from][depth]
				to := from + 1
				for to < s.to && patterns[to][depth] == c {
					to++
				}
				match := int32(0)
				if len(patterns[from]) == depth+1 {
					match = int32(depth + 1)
				}
				a.label = append(a.label, c)
				a.depth = append(a.depth, int32(depth+1))
				a.match = append(a.match, match)
				next = append(next, span{from, to})
				from = to
			}
		}
		level, next = next, level
	}
	a.child = append(a.child, int32(len(a.label)))
}

// allow sets show. A node's children come after it.
func (a *automaton) allow() {
	a.show = make([]uint8, len(a.label))
	for v := len(a.show) - 1; v >= 0; v-- {
		a.show[v] = minLen - 1
		if a.match[v] > 0 {
			a.show[v] = uint8(min(a.match[v]/4, minLen-1))
		}
		for _, below := range a.show[a.child[v]:a.child[v+1]] {
			a.show[v] = min(a.show[v], below)
		}
	}
}

// link sets fail and the fields that are computed from it. The fail of a node has a smaller depth, so link has set it
// before.
func (a *automaton) link() {
	a.fail = make([]int32, len(a.label))
	for v := range int32(len(a.label)) {
		for u := a.child[v]; u < a.child[v+1]; u++ {
			if v != 0 {
				a.fail[u] = a.step(a.fail[v], a.label[u])
			}
			if a.match[u] == 0 {
				a.match[u] = a.match[a.fail[u]]
			}
		}
	}
}

// index sets filter and the table.
func (a *automaton) index(patterns []string) {
	first, _ := slices.BinarySearch(a.depth, minLen)
	last, _ := slices.BinarySearch(a.depth, minLen+1)
	size := bits.Len(uint(last - first))
	a.slots = 32 - (size + 1)
	a.keys, a.nodes = make([]uint32, 2<<size), make([]int32, 2<<size)
	size = min(max(size+6, 13), 22) // at most one bit in 64 is set, if the size allows it
	a.shift = 32 - size
	a.filter = make([]uint64, 1<<size/64)
	for _, p := range patterns {
		key, v := binary.LittleEndian.Uint32([]byte(p[:minLen])), int32(0)
		for i := range minLen {
			v = a.step(v, p[i])
		}
		h := hash(key)
		a.filter[h>>a.shift/64] |= 1 << (h >> a.shift % 64)
		at := h >> a.slots
		for a.nodes[at] != 0 && a.keys[at] != key {
			at = (at + 1) % uint32(len(a.keys))
		}
		a.keys[at], a.nodes[at] = key, v
	}
}

// hash spreads the four bytes in key over its upper bits.
func hash(key uint32) uint32 { return key * 0x9e3779b1 }

// start returns the node of the text key, or 0.
func (a *automaton) start(key uint32) int32 {
	at := hash(key) >> a.slots
	for a.nodes[at] != 0 {
		if a.keys[at] == key {
			return a.nodes[at]
		}
		at = (at + 1) % uint32(len(a.keys))
	}
	return 0
}

// step returns the node of the longest suffix of v's text and c that is a node.
func (a *automaton) step(v int32, c byte) int32 {
	for {
		from, to := a.child[v], a.child[v+1]
		if i := bytes.IndexByte(a.label[from:to], c); i >= 0 {
			return from + int32(i)
		}
		if v == 0 {
			return 0
		}
		v = a.fail[v]
	}
}

// open returns the longest suffix of v's text that can still become a match: a proper prefix of a pattern.
func (a *automaton) open(v int32) int32 {
	for v != 0 && a.child[v] == a.child[v+1] {
		v = a.fail[v]
	}
	return v
}

// scan continues from the node v through text and returns the last node. For each end of a pattern it calls hit, in
// order, with the length of the longest pattern that ends there.
func (a *automaton) scan(v int32, text []byte, hit func(end, length int)) int32 {
	i := 0
	for {
		// As long as the node is not as deep as the shortest pattern, it is quicker to search for its beginning again.
		if depth := int(a.depth[v]); depth < minLen && depth <= i {
			i = a.skip(text, i-depth)
			if len(text)-i < minLen {
				v = 0
				for _, c := range text[i:] { // too short for a match
					v = a.step(v, c)
				}
				return v
			}
			v = a.start(binary.LittleEndian.Uint32(text[i:]))
			if v == 0 {
				i++
				continue
			}
			i += minLen
		} else {
			if i == len(text) {
				return v
			}
			v = a.step(v, text[i])
			i++
		}
		if n := a.match[v]; n > 0 {
			hit(i, int(n))
		}
		// Most nodes are on a branch of one pattern: as long as the text follows that branch, this loop is quick.
		for i < len(text) {
			u := a.child[v]
			if a.child[v+1] != u+1 || a.label[u] != text[i] {
				break
			}
			v = u
			i++
			if n := a.match[v]; n > 0 {
				hit(i, int(n))
			}
		}
	}
}

// skip returns the first place from i on at which a pattern may begin, or a place with fewer than minLen bytes after
// it.
func (a *automaton) skip(text []byte, i int) int {
	filter, shift := a.filter, a.shift
	for ; i+minLen <= len(text); i++ {
		h := hash(binary.LittleEndian.Uint32(text[i:])) >> shift
		if filter[h/64]>>(h%64)&1 != 0 {
			break
		}
	}
	return i
}
