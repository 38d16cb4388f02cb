package component

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/internal/filelock"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// Getter gets steps that are not on this machine: those with a reference of the protocols git, zip and oci. It is safe
// for concurrent use. [*Fetcher] implements it.
type Getter interface {
	// Fetch returns the step that ref names, once it is on this machine. with are the credentials of the job.
	Fetch(ctx context.Context, ref *pb.Reference, with Credentials) (*Component, error)
}

// Fetcher gets steps by another program, so that a step runner links no network code. It starts one process for each
// step. That process has ended when Fetch returns. It is safe for concurrent use.
type Fetcher struct {
	// Command is the path of the program, and its arguments. The program reads a Request from standard input, writes an
	// Answer to standard output, and ends with its standard input. Required.
	Command []string
	// Dir is the cache's directory. If empty, the default.
	Dir string
	// Mirrors replaces the beginnings of URLs of git repositories. See [Request].
	Mirrors map[string]string
	// Open opens a local archive by its absolute path as the job sees it. If nil, the program opens it, as its user
	// does.
	Open func(path string, flag int, perm fs.FileMode) (*os.File, error)
	// Isolated says that jobs are isolated. See [Request].
	Isolated bool
}

// Mirrored returns a Fetcher with one more of the Mirrors.
func (f *Fetcher) Mirrored(from, to string) *Fetcher {
	own := *f
	own.Mirrors = map[string]string{from: to}
	maps.Copy(own.Mirrors, f.Mirrors)
	return &own
}

// Fetch returns the step that ref names. It blocks until the step is in the cache, or ctx ends; then the error is its
// cause. The program may present the credentials in ref and, after those, the credentials with. It gets them by its
// standard input, not by an argument or a variable. The error is a *SystemError if the reference is not at fault. The
// caller must Release the component.
func (f *Fetcher) Fetch(ctx context.Context, ref *pb.Reference, with Credentials) (*Component, error) {
	c, err := f.fetch(ctx, ref, with)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return c, err
}

func (f *Fetcher) fetch(ctx context.Context, ref *pb.Reference, with Credentials) (*Component, error) {
	text, err := proto.Marshal(ref)
	if err != nil {
		return nil, err
	}
	archive, err := f.open(ref)
	if err != nil {
		return nil, err
	}
	if archive != nil {
		defer archive.Close()
	}
	request, err := json.Marshal(Request{
		Reference: text, Credentials: with, Dir: f.Dir, Mirrors: f.Mirrors, Open: archive != nil, Isolated: f.Isolated,
	})
	if err != nil {
		return nil, err
	}
	if len(request) >= MaxMessage {
		return nil, fmt.Errorf("the step's reference and the job's credentials have more than %d bytes", MaxMessage)
	}
	p, err := startProgram(f.Command, archive)
	if err != nil {
		return nil, &SystemError{Err: fmt.Errorf("start the program that fetches steps: %w", err)}
	}
	atEnd := context.AfterFunc(ctx, p.end)
	c, err := exchange(append(request, '\n'), p.in, p.out)
	atEnd()
	why := p.wait() // whether Fetch succeeded or not, the program can end now
	if !errors.Is(err, errNoAnswer) {
		return c, err
	}
	return nil, &SystemError{Err: fmt.Errorf("the program that fetches steps has failed: %s", why)}
}

// open opens the local archive that ref names, and returns nil if it names none or the program is to open it.
func (f *Fetcher) open(ref *pb.Reference) (*os.File, error) {
	if f.Open == nil || ref.GetProtocol() != pb.Reference_zip || !filepath.IsAbs(ref.GetUrl()) {
		return nil, nil
	}
	return f.Open(ref.GetUrl(), os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO must not block
}

// errNoAnswer says that the program ended without an Answer.
var errNoAnswer = errors.New("the program did not answer")

// exchange sends a request and returns the component of the answer, with a lock of its own.
func exchange(request []byte, in io.Writer, out io.Reader) (*Component, error) {
	if _, err := in.Write(request); err != nil {
		return nil, errNoAnswer
	}
	line, err := bufio.NewReader(io.LimitReader(out, MaxMessage)).ReadBytes('\n')
	if err != nil {
		return nil, errNoAnswer
	}
	var a Answer
	if err := json.Unmarshal(line, &a); err != nil {
		return nil, errNoAnswer
	}
	switch {
	case a.System:
		return nil, &SystemError{Err: errors.New(a.Error), Server: a.Server}
	case a.Error != "":
		return nil, errors.New(a.Error)
	}
	lock, err := os.OpenFile(a.Lock, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, &SystemError{Err: fmt.Errorf("keep the step in the cache: %w", err)}
	}
	// The program still has its read lock, so no process removes the file before this one has its own.
	if err = filelock.TryRead(lock); err == nil && !filelock.StillAt(lock, a.Lock) {
		err = filelock.ErrTaken
	}
	if err != nil {
		lock.Close()
		return nil, &SystemError{Err: fmt.Errorf("keep the step in the cache: %w", err)}
	}
	c := a.component()
	c.Hold(lock)
	return c, nil
}
