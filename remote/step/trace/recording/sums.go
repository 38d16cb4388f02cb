package recording

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/stepmux/stepmux/internal/lazyregexp"

	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/component"
)

const (
	// maxSummed bounds a file whose digest is computed, in bytes.
	maxSummed = 1 << 30
	// maxTreeEntries and maxTreeSize bound the directory of a local step whose digest is computed.
	maxTreeEntries = 2000
	maxTreeSize    = 32 << 20
	// maxKnownFiles bounds the digests that are kept.
	maxKnownFiles = 10_000
)

// sums computes digests of files. It computes the digest of an unchanged file only once.
type sums struct {
	open     func(path string, flag int, perm fs.FileMode) (*os.File, error) // opens files as the job sees them
	files    map[string]summed
	versions map[string]string // by digest
}

// summed is the digest of a file and the file's state at that time. No process can set that state back.
type summed struct {
	state  [5]int64
	digest string
}

// file returns the SHA-256 of the regular file path. info is its state.
func (s *sums) file(path string, info fs.FileInfo) (string, error) {
	state := stateOf(info)
	if known, ok := s.files[path]; ok && known.state == state {
		return known.digest, nil
	}
	if info.Size() > maxSummed {
		return "", component.ErrTooLarge
	}
	file, err := s.open(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	h := sha256.New()
	v := &versionFinder{}
	if _, err := io.Copy(io.MultiWriter(h, v), io.LimitReader(file, maxSummed)); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	digest := hex.EncodeToString(h.Sum(nil))
	if s.files == nil || len(s.files) >= maxKnownFiles {
		s.files = map[string]summed{}
	}
	s.files[path] = summed{state, digest}
	s.know(digest, v.version)
	return digest, nil
}

// know keeps the version of the file with that digest. It does nothing if one of them is empty.
func (s *sums) know(digest, version string) {
	if digest == "" || version == "" {
		return
	}
	if s.versions == nil {
		s.versions = map[string]string{}
	}
	s.versions[digest] = version
}

func stateOf(info fs.FileInfo) (state [5]int64) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		//nolint:unconvert // needed on some machines
		state = [5]int64{int64(st.Ino), st.Size, int64(st.Mode), st.Ctim.Sec, st.Ctim.Nsec}
	}
	return state
}

// program is a file that can be executed, and its SHA-256, which is empty if the file cannot be read.
type program struct{ path, digest string }

// programs returns the program of cmd's first argument and its interpreter: the one after the #! of a script or, for a
// script step, the program itself.
func (s *sums) programs(cmd *proc.Command, isScript bool) (run, interpreter program) {
	run = s.find(cmd.Argv[0], cmd)
	if isScript {
		return run, run
	}
	return run, s.find(s.interpreterOf(run.path), cmd)
}

// find returns the program that cmd runs as name. It is zero if it does not exist.
func (s *sums) find(name string, cmd *proc.Command) program {
	path, err := proc.Find(name, cmd.Dir, cmd.Env)
	if err != nil {
		return program{}
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return program{}
	}
	p := program{path: path}
	if info, err := os.Lstat(real); err == nil && info.Mode().IsRegular() {
		p.digest, _ = s.file(real, info)
	}
	return p
}

// tree returns the digest of the directory dir of a local step. It returns "" if dir is too large, or contains the
// job's directory work, whose path has no symbolic links.
func (s *sums) tree(dir, work string) string {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return ""
	}
	if rel, err := filepath.Rel(real, work); err == nil && filepath.IsLocal(rel) {
		return ""
	}
	digest, _ := component.DirTree(real, maxTreeEntries, maxTreeSize, s.file)
	return digest
}

// interpreterOf returns the program after the #! of the script path; for /usr/bin/env X it returns X. It is empty for
// other files.
func (s *sums) interpreterOf(path string) string {
	file, err := s.open(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	var head [256]byte // the part that the kernel looks at
	n, _ := io.ReadFull(file, head[:])
	line, isScript := bytes.CutPrefix(head[:n], []byte("#!"))
	if !isScript {
		return ""
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	words := append(strings.Fields(string(line)), "", "")
	switch {
	case filepath.Base(words[0]) != "env" || words[1] == "":
		return words[0]
	case words[1] == "-S":
		return words[2]
	default:
		return words[1]
	}
}

// bashVersion matches the version in the file of bash.
var bashVersion = lazyregexp.New(`@\(#\)(Bash version [ -~]{0,64})\x00`)

// versionFinder finds the version in the file of bash.
type versionFinder struct {
	tail    []byte
	version string
}

func (v *versionFinder) Write(p []byte) (int, error) {
	const most = 100 // at least the length of a match of bashVersion
	if v.version == "" {
		v.tail = append(v.tail, p...)
		if found := bashVersion().FindSubmatch(v.tail); found != nil {
			v.version = string(found[1])
		}
		v.tail = append(v.tail[:0], v.tail[max(0, len(v.tail)-most):]...)
	}
	return len(p), nil
}

// ownDigest is the SHA-256 of the file of this program; empty if it cannot be read.
var ownDigest = sync.OnceValue(func() string {
	file, err := os.Open("/proc/self/exe") // the file it was started from, even if another one is at its path now
	if err != nil {
		return ""
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
})
