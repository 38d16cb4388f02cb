package actionservices

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// maxBlocks bounds the pieces of a file.
const maxBlocks = 50_000

// extent is a part of a file.
type extent struct{ from, to int64 }

// spool is a file that arrives in pieces, in any order and several at once. It is safe for concurrent use.
type spool struct {
	limit       int64
	room        *room
	journalPath string // empty without a journal

	mu     sync.Mutex // guards the following
	path   string
	file   *os.File // nil once the spool is sealed or discarded
	end    int64    // of all pieces
	pieces []extent // that have arrived, or are on their way
	under  int      // how many are on their way
	held   int64    // bytes of room
	blocks map[string]extent
	// journal is for the next process; nil without one, and once the spool is sealed or discarded.
	journal *os.File
}

func newSpool(path string, limit int64, of *room) (*spool, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	return &spool{path: path, limit: limit, room: of, file: file, blocks: map[string]extent{}}, err
}

// room counts the bytes that uploads may take on the disk until they are complete. It is safe for concurrent use.
type room struct {
	reserve int64 // of the disk

	mu   sync.Mutex // guards the following
	left int64
}

// leaves returns an error unless the disk of a file has room for size bytes, and for others.
func (r *room) leaves(path string, size int64) error {
	var disk unix.Statfs_t
	if r.reserve == 0 || unix.Statfs(path, &disk) != nil {
		return nil //nolint:nilerr // the write tells
	}
	if free := int64(disk.Bavail) * disk.Bsize; size > free-r.reserve { // a disk is smaller
		return errFull
	}
	return nil
}

// take takes n bytes of room. It fails if there are fewer.
func (r *room) take(n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > r.left {
		return false
	}
	r.left -= n
	return true
}

func (r *room) give(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left += n
}

// The errors of pieces.
var (
	errSealed  = refuse(http.StatusConflict, "the upload is complete, or its job has ended")
	errOverlap = refuse(http.StatusBadRequest, "the pieces of the upload overlap")
	errLength  = refuse(http.StatusLengthRequired, "the piece has no length")
	errShort   = refuse(http.StatusBadRequest, "the piece is shorter or longer than its length says")
	errTooBig  = refuse(http.StatusRequestEntityTooLarge, "the file is larger than stepmux accepts")
	errPieces  = refuse(http.StatusBadRequest, "the upload has too many pieces")
)

// ErrNoRoom is the error of a Store without room. The client is told.
var ErrNoRoom = refuse(http.StatusInsufficientStorage,
	"the files of other jobs take all the room that stepmux has for them: try again when these have ended")

// atEnd is a place for put.
const atEnd = -1

// put writes a piece of size bytes at a place, or at the end. A piece that is there already, as after a lost answer, is
// written once. block, if not empty, names the piece for commit.
func (s *spool) put(from io.Reader, at, size int64, block string) error {
	if size < 0 {
		return errLength
	}
	s.mu.Lock()
	if at == atEnd {
		at = s.end
	}
	part := extent{at, at + size}
	there := slices.Contains(s.pieces, part) && s.under == 0
	switch {
	case s.file == nil:
		s.mu.Unlock()
		return errSealed
	case at < 0 || at > s.limit || size > s.limit-at:
		s.mu.Unlock()
		return errTooBig
	case len(s.pieces) >= maxBlocks:
		s.mu.Unlock()
		return errPieces
	case there && size > 0:
		s.mu.Unlock()
		_, err := io.CopyN(io.Discard, from, size)
		return err
	case slices.ContainsFunc(s.pieces, func(e extent) bool { return e.from < part.to && part.from < e.to }):
		s.mu.Unlock()
		return errOverlap
	}
	file := s.file
	if err := s.room.leaves(s.path, size); err != nil {
		s.mu.Unlock()
		return err
	}
	if !s.room.take(size) {
		s.mu.Unlock()
		return ErrNoRoom
	}
	s.held += size
	s.under++
	s.pieces = append(s.pieces, part)
	s.end = max(s.end, part.to)
	s.mu.Unlock()

	n, err := io.Copy(io.NewOffsetWriter(file, at), io.LimitReader(from, size))
	if err == nil && n == size {
		var more int
		more, _ = io.ReadFull(from, make([]byte, 1)) // its end, or an error of the client, which has sent all
		n += int64(more)
	}
	if err == nil && n != size {
		err = errShort
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.under--
	if s.file == nil && s.under == 0 { // discard has left it open
		file.Close()
		s.releaseLocked()
	}
	if err != nil {
		s.pieces = slices.DeleteFunc(s.pieces, func(e extent) bool { return e == part })
		return err
	}
	if block != "" {
		s.blocks[block] = part
	}
	s.note(journalLine{From: part.from, To: part.to, Block: block})
	return nil
}

// commit makes the file of its blocks, in this order.
func (s *spool) commit(blocks []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil || s.under > 0 {
		return errSealed
	}
	var at int64
	var order []extent
	inOrder := true
	for _, name := range blocks {
		e, ok := s.blocks[name]
		if !ok {
			return refuse(http.StatusBadRequest, "the list has a block that was not sent")
		}
		inOrder = inOrder && e.from == at
		at += e.to - e.from
		if at > s.limit {
			return errTooBig
		}
		order = append(order, e)
	}
	was := s.path
	if !inOrder || at != s.end {
		if err := s.rewrite(order); err != nil {
			return err
		}
	}
	s.note(journalLine{To: at, File: filepath.Base(s.path)})
	if s.path != was { // the journal does not need it any more
		_ = os.Remove(was) // its directory goes later
	}
	s.pieces, s.end = []extent{{0, at}}, at
	clear(s.blocks)
	s.room.give(s.held - at)
	s.held = at
	return nil
}

// rewrite writes parts of the file one after the other, to another file. s.mu is held.
func (s *spool) rewrite(order []extent) (err error) {
	var size int64
	for _, e := range order {
		size += e.to - e.from
	}
	if !s.room.take(size) {
		return ErrNoRoom
	}
	s.held += size
	path := otherName(s.path)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	for _, e := range order {
		if _, err = s.file.Seek(e.from, io.SeekStart); err == nil {
			_, err = io.CopyN(file, s.file, e.to-e.from)
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		file.Close()
		return errors.Join(err, os.Remove(path))
	}
	s.file.Close()
	s.file, s.path = file, path
	return nil
}

// otherName returns the name to which a file is rewritten, and for that the name before.
func otherName(path string) string {
	if was, is := strings.CutSuffix(path, "~"); is {
		return was
	}
	return path + "~"
}

// seal ends the upload of a file that must have size bytes, without a hole; if size is negative, any number. It returns
// the size. After an error the upload can go on.
func (s *spool) seal(size int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil || s.under > 0 {
		return 0, errSealed
	}
	slices.SortFunc(s.pieces, func(a, b extent) int { return int(min(max(a.from-b.from, -1), 1)) })
	var at int64
	for _, e := range s.pieces {
		if e.from != at {
			return 0, refuse(http.StatusBadRequest, "bytes %d to %d of the file are missing", at, e.from)
		}
		at = e.to
	}
	if size >= 0 && at != size {
		return 0, refuse(http.StatusBadRequest, "the file has %d bytes, not %d", at, size)
	}
	err := s.file.Truncate(at) // a piece that has failed may have left bytes
	if err == nil {
		err = s.file.Close()
		s.file = nil
	}
	return at, err
}

// release gives the room of the file back, which has another owner or is gone. There is no way on for a later process.
func (s *spool) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked()
}

func (s *spool) releaseLocked() {
	s.room.give(s.held)
	s.held = 0
	if s.journal != nil {
		s.journal.Close()
		s.journal = nil
		_ = os.Remove(s.journalPath) // its directory goes later
	}
}

// leave ends the upload in this process, and keeps it for the next one.
func (s *spool) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.journal != nil {
		s.journal.Close()
		s.journal = nil
	}
	if s.file != nil && s.under == 0 { // else the last piece closes it
		s.file.Close()
	}
	s.file = nil
	s.room.give(s.held)
	s.held = 0
}

// at returns the path of the file.
func (s *spool) at() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.path
}

// discard removes the file. It does nothing to a file that was sealed.
func (s *spool) discard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return
	}
	if s.under == 0 { // else the last piece does it
		s.file.Close()
		s.releaseLocked()
	}
	s.file = nil
	_ = os.Remove(s.path) // its directory goes later
}
