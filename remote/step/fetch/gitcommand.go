package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/termtext"
)

// gitProgram runs git on a private bare repository, dir. No configuration of the machine, the user or a repository has
// any effect on it.
type gitProgram struct {
	tmp *scratch
	dir string
	// header is the value of the Authorization header; empty to send no header.
	header string
	// local tells that the repository fetched from is a directory of this machine.
	local bool
	// stall is the longest time without a byte from the server.
	stall time.Duration
	// limit bounds the files that git writes, in bytes. If zero, they are not bounded.
	limit int64
}

// gitEnv are the variables that git gets from our environment: they find programs and the network.
var gitEnv = []string{
	"PATH", "http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH",
}

func (g *gitProgram) environment() []string {
	env := []string{
		"LC_ALL=C", "HOME=" + g.tmp.path, "TMPDIR=" + g.tmp.path,
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS=", "GIT_NO_REPLACE_OBJECTS=1", "GIT_OPTIONAL_LOCKS=0",
	}
	for _, name := range gitEnv {
		if value := os.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	if file := os.Getenv("SSL_CERT_FILE"); file != "" && os.Getenv("GIT_SSL_CAINFO") == "" {
		env = append(env, "GIT_SSL_CAINFO="+file) // the TLS library of git may read another variable
	}
	if g.header != "" { // not as an argument: all users of the machine can read those
		env = append(env, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader",
			"GIT_CONFIG_VALUE_0=Authorization: "+g.header)
	}
	return env
}

// options returns the arguments before every command.
func (g *gitProgram) options() []string {
	allow := []string{"https", "http"}
	if g.local {
		allow = []string{"file"}
	}
	options := []string{"--git-dir=" + g.dir, "-c", "protocol.allow=never"}
	for _, protocol := range allow {
		options = append(options, "-c", "protocol."+protocol+".allow=always")
	}
	for _, setting := range []string{
		"http.followRedirects=false", "http.lowSpeedLimit=1", fmt.Sprintf("http.lowSpeedTime=%d", int(g.stall.Seconds())),
		"core.hooksPath=/dev/null", "core.fsmonitor=", "core.attributesFile=/dev/null", "core.askPass=", "credential.helper=",
		"fetch.fsckObjects=true", "fetch.unpackLimit=1", "gc.auto=0", "maintenance.auto=false", "submodule.recurse=false",
	} {
		options = append(options, "-c", setting)
	}
	return options
}

// maxListing bounds the output of git, in bytes.
const maxListing = 64 << 20

// output runs a command of git and returns its standard output.
func (g *gitProgram) output(ctx context.Context, args ...string) (string, error) {
	var out string
	err := g.run(ctx, strings.NewReader(""), func(r io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(r, maxListing+1))
		if err == nil && len(data) > maxListing {
			err = fmt.Errorf("git prints more than %d bytes", maxListing)
		}
		out = string(data)
		return err
	}, args...)
	return out, err
}

// run runs a command of git. read gets its standard output; an error of read ends git. When run returns, git and its
// children are gone.
func (g *gitProgram) run(ctx context.Context, in io.Reader, read func(io.Reader) error, args ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append(g.options(), args...)...)
	cmd.Env, cmd.Dir = g.environment(), g.tmp.path
	// If we die git does. Until then it holds the lock of the directory that it writes to.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.ExtraFiles = []*os.File{g.tmp.lock}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	var stderr tail
	cmd.Stdin, cmd.Stderr = in, &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return errors.New("the program git is not installed on this machine; install it")
		}
		return fmt.Errorf("start git: %w", err)
	}
	if g.limit > 0 { // before git can have received anything
		most := unix.Rlimit{Cur: uint64(g.limit), Max: uint64(g.limit)}
		if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_FSIZE, &most, nil); err != nil && !errors.Is(err, unix.ESRCH) {
			cancel()
			return errors.Join(fmt.Errorf("limit git: %w", err), cmd.Wait())
		}
	}
	readErr := read(out)
	if readErr != nil {
		cancel()
	}
	err = cmd.Wait()
	switch {
	case readErr != nil && !errors.Is(readErr, os.ErrClosed):
		return readErr
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && g.full():
		return fmt.Errorf("the data of the server: %w", tooLarge(g.limit))
	case err != nil:
		return &gitError{command: args[0], stderr: stderr.text(), err: err}
	}
	return nil
}

// full reports whether a file of git has reached the limit. The process that writes it is killed without a message
// then.
func (g *gitProgram) full() (full bool) {
	_ = filepath.WalkDir(g.dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			info, err := d.Info()
			full = full || err == nil && g.limit > 0 && info.Size() >= g.limit
		}
		return nil // a file that is gone has not reached it
	})
	return full
}

// gitError says that a command of git failed.
type gitError struct {
	command, stderr string
	err             error
}

func (e *gitError) Error() string {
	for line := range strings.SplitSeq(e.stderr, "\n") {
		for _, word := range []string{"fatal: ", "error: "} {
			if text, found := strings.CutPrefix(line, word); found { // the first one tells the most
				return fmt.Sprintf("git %s: %s", e.command, termtext.Short(text, 300))
			}
		}
	}
	return fmt.Sprintf("git %s: %v", e.command, e.err)
}

func (e *gitError) Unwrap() error { return e.err }

// tail is a writer that keeps the last maxTail bytes.
type tail struct{ b bytes.Buffer }

const maxTail = 8 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.b.Write(p)
	if t.b.Len() > maxTail {
		t.b.Next(t.b.Len() - maxTail)
	}
	return len(p), nil
}

func (t *tail) text() string { return t.b.String() }
