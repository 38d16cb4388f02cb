package actionservices

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// journalSuffix ends the name of the journal of an upload, which lets the next process go on with it: a line that
// describes it, and a line for each piece that has arrived. Nothing is synced: after a crash of the machine, the file
// may lack pieces that its journal has, so an upload of another boot is removed.
const journalSuffix = ".log"

// maxUnfinished is how long an upload may wait for the next process, and maxLine bounds a line of its journal.
const maxUnfinished, maxLine = 24 * time.Hour, 16 << 10

// journalHead is the first line of a journal.
type journalHead struct {
	Boot     string    `json:"boot"`
	Limit    int64     `json:"limit"`
	Artifact *Artifact `json:"artifact,omitempty"`
	Cache    *Cache    `json:"cache,omitempty"`
}

// journalLine says that a piece has arrived, or that the file consists of the pieces up to To, and has this name.
type journalLine struct {
	From  int64  `json:"from,omitempty"`
	To    int64  `json:"to"`
	Block string `json:"block,omitempty"`
	File  string `json:"file,omitempty"`
}

// bootID names the boot of the machine. It is empty if that is not known.
func bootID() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // else uploads do not outlive their process
	return string(bytes.TrimSpace(text))
}

// keepJournal begins the journal of an upload.
func (u *upload) keepJournal() error {
	file, err := os.OpenFile(u.spool.path+journalSuffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	u.spool.journal, u.spool.journalPath = file, file.Name()
	u.spool.note(journalHead{Boot: bootID(), Limit: u.spool.limit, Artifact: u.artifact, Cache: u.cache})
	return nil
}

// note adds a line to the journal, if there is one. s.mu is held, or s is new. Without the line a later process misses
// the piece, and says so when the upload ends.
func (s *spool) note(line any) {
	if s.journal == nil {
		return
	}
	text, err := json.Marshal(line)
	if err == nil {
		_, _ = s.journal.Write(append(text, '\n')) // see above
	}
}

// resume takes on the uploads of a job that a process before has left. s.mu is held.
func (s *Server) resume(b *session) {
	dir, err := s.store.Scratch(false)
	if err != nil {
		return
	}
	journals, _ := filepath.Glob(filepath.Join(dir, s.scratchName(b)+"*"+journalSuffix)) // the name has no pattern
	for _, path := range journals {
		u, err := s.readJournal(b, path)
		if err != nil {
			removeUpload(path)
			continue
		}
		s.uploads[u.id] = u
		s.number = max(s.number, u.id)
	}
}

// removeUpload removes the files of an upload, by the path of its journal.
func removeUpload(journal string) {
	path := strings.TrimSuffix(journal, journalSuffix)
	for _, name := range []string{path, otherName(path), journal} {
		_ = os.Remove(name) // at most one of the first two is there
	}
}

// readJournal opens an upload by its journal.
func (s *Server) readJournal(b *session, path string) (*upload, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	name := strings.TrimSuffix(path, journalSuffix)
	id, err := strconv.ParseInt(name[strings.LastIndexByte(name, '-')+1:], 10, 64)
	u := &upload{id: id, session: b, spool: &spool{
		path: name, room: &s.room, blocks: map[string]extent{}, journal: file, journalPath: path,
	}}
	if err == nil {
		err = u.readLines(bufio.NewReaderSize(file, maxLine))
	}
	if err == nil {
		u.spool.file, err = os.OpenFile(u.spool.path, os.O_RDWR, 0)
	}
	if err == nil && !s.room.take(u.spool.end) {
		err = ErrNoRoom
	}
	if err != nil {
		file.Close()
		if u.spool.file != nil {
			u.spool.file.Close()
		}
		return nil, err
	}
	u.spool.held = u.spool.end
	return u, nil
}

// readLines reads the lines of a journal. One that was cut off is not there.
func (u *upload) readLines(from *bufio.Reader) error {
	var head journalHead
	text, err := from.ReadSlice('\n')
	if err == nil {
		err = json.Unmarshal(text, &head)
	}
	if err == nil && (head.Boot == "" || head.Boot != bootID() || (head.Artifact == nil) == (head.Cache == nil)) {
		err = errors.New("the upload is of another boot of the machine")
	}
	if err != nil {
		return err
	}
	s := u.spool
	u.artifact, u.cache, s.limit = head.Artifact, head.Cache, head.Limit
	for {
		var line journalLine
		text, err := from.ReadSlice('\n')
		if err != nil || json.Unmarshal(text, &line) != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}
		part := extent{line.From, line.To}
		switch {
		case part.from < 0 || part.to < part.from || part.to > s.limit || len(s.pieces) >= maxBlocks:
			return errPieces
		case line.File != "":
			s.path = filepath.Join(filepath.Dir(s.path), filepath.Base(line.File))
			s.pieces, s.end = []extent{{0, part.to}}, part.to
			clear(s.blocks)
		default:
			s.pieces, s.end = append(s.pieces, part), max(s.end, part.to)
			if line.Block != "" {
				s.blocks[line.Block] = part
			}
		}
	}
}

// Leave ends a job in this process, after which the next one may begin it again: its uploads that are not complete
// stay, if Config.Resume says so.
func (s *Server) Leave(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.sessions[idOf(token)]
	if b == nil || !s.cfg.Resume {
		return
	}
	delete(s.sessions, b.id)
	for id, u := range s.uploads {
		if u.session == b {
			u.spool.leave()
			delete(s.uploads, id)
		}
	}
}

// Sweep removes uploads that no process has gone on with for a day.
func (s *Server) Sweep() {
	dir, err := s.store.Scratch(false)
	if err != nil {
		return
	}
	names, _ := os.ReadDir(dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	live := map[string]bool{}
	for _, u := range s.uploads {
		live[filepath.Base(u.spool.journalPath)] = true
	}
	for _, d := range names {
		if info, err := d.Info(); err == nil && strings.HasSuffix(d.Name(), journalSuffix) && !live[d.Name()] &&
			time.Since(info.ModTime()) > maxUnfinished {
			removeUpload(filepath.Join(dir, d.Name()))
		}
	}
}
