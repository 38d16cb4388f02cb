package recording

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"

	"github.com/stepmux/stepmux/remote/step/trace"
)

// part computes the digests of a part of a stream: unchanged, and with markers for paths.
type part struct {
	paths     Paths
	offset    int64
	bytes     int64
	marked    int64
	truncated bool
	asMarked  hash.Hash
	asIs      hash.Hash // nil as long as both digests are the same
	held      []byte    // may be the beginning of a path
}

func newPart(offset int64, paths Paths) *part {
	return &part{offset: offset, paths: paths, asMarked: sha256.New()}
}

// write takes the next bytes.
func (p *part) write(data []byte) {
	p.bytes += int64(len(data))
	if p.asIs != nil {
		p.asIs.Write(data)
	}
	if len(p.held) > 0 {
		data = append(p.held, data...)
		p.held = p.held[:0]
	}
	p.scan(data)
}

// scan passes on data with its paths marked. It holds back an end that may be the beginning of a path.
func (p *part) scan(data []byte) {
	for at := 0; ; {
		next := bytes.IndexByte(data[at:], '/')
		if next < 0 {
			p.pass(data)
			return
		}
		at += next
		k, open := p.paths.open(data[at:])
		switch {
		case open:
			p.pass(data[:at])
			p.held = append(p.held[:0], data[at:]...)
			return
		case k == nil:
			at++
		default:
			p.pass(data[:at])
			p.split(data[at:])
			p.pass([]byte(k.marker))
			data, at = data[at+len(k.path):], 0
		}
	}
}

// open returns the path at the beginning of data. open says that more data may still complete a path.
func (p *Paths) open(data []byte) (_ *known, open bool) {
	for i := range p.known {
		k := &p.known[i]
		n := min(len(data), len(k.path))
		if string(data[:n]) != k.path[:n] {
			continue
		}
		if len(data) <= len(k.path) {
			return nil, true
		}
		if !inName(data[n]) {
			return k, false
		}
	}
	return nil, false
}

// split begins the second digest, because from here on the stream and its marked form differ. rest are the next bytes
// of the stream.
func (p *part) split(rest []byte) {
	if p.asIs != nil {
		return
	}
	sum, err := p.asMarked.(hash.Cloner).Clone()
	if err != nil {
		panic("BUG: copy the state of a SHA-256: " + err.Error())
	}
	p.asIs = sum
	p.asIs.Write(rest)
}

func (p *part) pass(data []byte) {
	p.marked += int64(len(data))
	p.asMarked.Write(data)
}

// end decides about the held-back bytes.
func (p *part) end() {
	if len(p.held) == 0 {
		return
	}
	rest := string(p.held)
	p.held = nil
	for _, k := range p.paths.known {
		if begins(rest, k.path) {
			p.split([]byte(rest))
			p.pass([]byte(k.marker))
			p.scan([]byte(rest[len(k.path):]))
			p.end()
			return
		}
	}
	p.pass([]byte(rest[:1]))
	p.scan([]byte(rest[1:]))
	p.end()
}

// log returns the part with markers, for the identity, and its place in the stream.
func (p *part) log() (trace.Log, *trace.Range) {
	p.end()
	sum := hex.EncodeToString(p.asMarked.Sum(nil))
	asIs := sum
	if p.asIs != nil {
		asIs = hex.EncodeToString(p.asIs.Sum(nil))
	}
	log := trace.Log{Bytes: p.marked, SHA256: sum, Truncated: p.truncated}
	return log, &trace.Range{Offset: p.offset, Bytes: p.bytes, SHA256: asIs}
}
