package component

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/tail"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// endTime is how long the program that fetches may take to end, once it is told to, before it is killed.
const endTime = 10 * time.Second

// Fetcher gets steps by another program, so that a step runner links no network code. It starts one process for each
// step, which ends before Fetch returns. It is safe for concurrent use.
type Fetcher struct {
	// Command is the program. It reads a Request from standard input, writes an Answer to standard output, and ends with
	// its standard input. Required.
	Command []string
	// Dir is the cache's directory; empty for the default.
	Dir string
}

// Fetch returns the step that ref names. It blocks until the step is in the cache, or ctx ends; then the error is its
// cause. The program may present the credentials in ref and, after those, the credentials with: they reach it by its
// standard input, and are in none of its arguments and variables. The caller must Release the component.
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
	request, err := json.Marshal(Request{Reference: text, Credentials: with, Dir: f.Dir})
	if err != nil {
		return nil, err
	}
	if len(request) >= MaxMessage {
		return nil, fmt.Errorf("the step's reference and the job's credentials have more than %d bytes", MaxMessage)
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	cmd := exec.CommandContext(ctx, f.Command[0], f.Command[1:]...)
	// At the end of ctx its input ends. If it does not end then, or if we die, it is killed, and git with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	said := &tail.Writer{}
	cmd.Stderr, cmd.WaitDelay = said, endTime
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	cmd.Cancel = in.Close
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the program that fetches steps: %w", err)
	}
	c, err := exchange(append(request, '\n'), in, out)
	end() // the component is ours, or there is none
	_ = out.Close()
	ended := cmd.Wait()
	if !errors.Is(err, errNoAnswer) {
		return c, err
	}
	why := cmp.Or(strings.TrimPrefix(said.String(), "stepmux: "), "it gave no reason")
	if failed, ok := errors.AsType[*exec.ExitError](ended); ok {
		why = failed.Error() + ": " + why
	}
	return nil, fmt.Errorf("the program that fetches steps has failed: %s", why)
}

// errNoAnswer says that the program ended without an Answer.
var errNoAnswer = errors.New("it did not answer")

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
	if a.Error != "" {
		return nil, errors.New(a.Error)
	}
	lock, err := os.OpenFile(a.Lock, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("keep the step in the cache: %w", err)
	}
	// The program has a shared lock, so that nobody removes the file while this one is taken.
	if err = filelock.TryShared(lock); err == nil && !filelock.StillAt(lock, a.Lock) {
		err = filelock.ErrTaken
	}
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("keep the step in the cache: %w", err)
	}
	c := a.component()
	c.Hold(lock)
	return c, nil
}
