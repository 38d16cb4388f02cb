package whole

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
	"github.com/stepmux/stepmux/remote/jobcache"
)

// The files in the directory of a store. doneFile has a line of JSON for each job that succeeded, after one with the
// header. stampsFile has the stamps of the files of the project when the first of these jobs started.
const doneFile, stampsFile = "done", "files"

// maxLine bounds a line of doneFile, in bytes: more than the values of a job may have.
const maxLine = 1 << 20

// ErrNothingToResume is wrapped by the error of a run that shall resume an earlier one, if there is none or its jobs
// were others.
var ErrNothingToResume = errors.New("nothing to resume")

// header is the first line of doneFile.
type header struct {
	Digest string `json:"digest"`
	// Masked are the names of masked variables: artifacts and values of the run may have their values.
	Masked []string `json:"masked,omitempty"`
}

// kept is a job that has succeeded, with the files and values that it gives to others.
type kept struct {
	Name   string            `json:"name"`
	Values map[string]string `json:"values,omitempty"`
	// Archive has the artifacts. It is a file of the store.
	Archive carry.Archive `json:"archive,omitzero"`
	// Again says that the job has started again: what was kept before does not count any more.
	Again bool `json:"again,omitempty"`
}

// store keeps the jobs of a run that succeeded, for a run that resumes it. Other processes do not use its directory: it
// is locked. A nil store keeps nothing. The owner calls close.
type store struct {
	dir  string
	lock *os.File
	// earlier are the jobs of the run that is resumed, by their names.
	earlier map[string]kept

	mu  sync.Mutex // guards the following
	log *os.File   // open for appending
	err error      // the first failed write
}

// openStore opens the store of cfg, and empties it unless cfg resumes an earlier run. It returns nil, with a notice, if
// the store cannot be used and is not needed.
func openStore(ctx context.Context, digest string, cfg Config) (_ *store, err error) {
	if cfg.StateDir == "" && !cfg.Resume {
		return nil, nil
	}
	dir := filepath.Join(cfg.StateDir, nameOf(cfg.Name))
	switch err := claimable(ctx, cfg.StateDir, dir); {
	case err != nil && cfg.Resume:
		return nil, fmt.Errorf("%w: %w", ErrNothingToResume, err)
	case err != nil:
		cfg.Say(fmt.Sprintf("--resume will not find this run: %v", err))
		return nil, nil
	}
	lock, err := filelock.Claim(dir)
	if errors.Is(err, filelock.ErrTaken) && !cfg.Resume {
		cfg.Say("--resume will not find this run: another run of this file is under way")
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("another run of this file: lock %s: %w", dir, err)
	}
	s := &store{dir: dir, lock: lock}
	defer func() {
		if err != nil {
			s.release()
		}
	}()
	now, masked := time.Now(), slices.Sorted(maps.Keys(cfg.Masked))
	_ = os.Chtimes(dir, now, now) // for Sweep
	if cfg.Resume {
		err = s.read(digest, masked)
	} else {
		err = s.clear()
	}
	if err != nil {
		return nil, err
	}
	path := filepath.Join(s.dir, doneFile)
	if s.log, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	if cfg.Resume {
		s.tellChanged(cfg)
		_, err = s.log.WriteString("\n") // ends a line that is not complete
		return s, err
	}
	return s, errors.Join(s.write(header{digest, masked}), s.writeStamps(cfg))
}

// claimable makes the directory of a store.
func claimable(ctx context.Context, state, dir string) error {
	if state == "" {
		return errors.New("there is no directory for it: set HOME")
	}
	jobcache.Sweep(ctx, filepath.Dir(state))
	return os.MkdirAll(dir, 0o700)
}

// read reads the jobs of the earlier run. A last line that is not complete was written when its run was killed.
func (s *store) read(digest string, masked []string) error {
	file, err := os.Open(filepath.Join(s.dir, doneFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: there is no earlier run of this file here, or it succeeded", ErrNothingToResume)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, maxLine)
	var h header
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &h) != nil || h.Digest != digest {
		return fmt.Errorf("%w: the jobs of the file, or their needs, have changed since the earlier run",
			ErrNothingToResume)
	}
	for _, name := range h.Masked {
		if !slices.Contains(masked, name) {
			return fmt.Errorf("%w: the earlier run masked %.64q, whose value its results may have: mask it again (--mask)",
				ErrNothingToResume, name)
		}
	}
	s.earlier = map[string]kept{}
	for lines.Scan() {
		var k kept
		if json.Unmarshal(lines.Bytes(), &k) != nil {
			continue
		}
		if delete(s.earlier, k.Name); !k.Again && s.hasArchive(k) {
			s.earlier[k.Name] = k
		}
	}
	return lines.Err()
}

// hasArchive reports whether the archive of k, if it has one, is there.
func (s *store) hasArchive(k kept) bool {
	if k.Archive.IsZero() {
		return true
	}
	info, err := os.Lstat(carry.Shelf(s.dir).Path(k.Archive.Digest))
	return err == nil && info.Mode().IsRegular() && info.Size() == k.Archive.Size
}

// nameOf returns a name of a file for any text.
func nameOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// find returns the result of a job in the earlier run.
func (s *store) find(job string) (k kept, ok bool) {
	if s == nil {
		return k, false
	}
	k, ok = s.earlier[job]
	return k, ok
}

// keep records a job that has succeeded.
func (s *store) keep(k kept) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = s.write(k)
	}
}

// write appends a line, unless it is too long: then the job runs again.
func (s *store) write(line any) error {
	var text bytes.Buffer
	if err := json.NewEncoder(&text).Encode(line); err != nil {
		return err
	}
	if text.Len() > maxLine {
		return nil
	}
	_, err := s.log.Write(text.Bytes())
	return err
}

// close ends the use of the store. After a run that leaves nothing to resume, it is emptied.
func (s *store) close(done bool) error {
	if s == nil {
		return nil
	}
	defer s.release()
	if done {
		return s.clear()
	}
	return s.err
}

func (s *store) release() {
	if s.log != nil {
		s.log.Close()
	}
	filelock.Release(s.lock)
}

// clear removes all files of the store.
func (s *store) clear() error {
	list, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	defer list.Close()
	names, err := list.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, name := range names {
		err = errors.Join(err, rmtree.Remove(filepath.Join(s.dir, name)))
	}
	return err
}

// digest returns a digest of the jobs of a pipeline and their needs. Their scripts and their places in the text do not
// change it.
func (p *Pipeline) digest() (string, error) {
	sum := sha256.New()
	to := json.NewEncoder(sum)
	for i, n := range p.Graph.Nodes {
		n.Place = ""
		if err := to.Encode([]any{p.Jobs[i].Stage, n}); err != nil {
			return "", err
		}
		if t := p.Jobs[i].Trigger; t != nil && t.Child != nil {
			child, err := t.Child.digest()
			if err != nil {
				return "", err
			}
			fmt.Fprintln(sum, child)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
