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
)

// gitProgram runs git on a bare repository of our own, dir. Nothing of this machine or of a repository says how it does
// what it does.
type gitProgram struct {
	aside *scratch
	dir   string
	// header is what an Authorization header for the remote repository has; empty for none.
	header string
	// local tells that the remote repository is a directory of this machine.
	local bool
	// stall is how long the server may send nothing.
	stall time.Duration
	// limit is how many bytes a file may have that git writes; 0 for any.
	limit int64
}

// The environment that git gets of ours: where programs are, and how the network is reached.
var gitEnv = []string{
	"PATH", "http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH",
}

func (g *gitProgram) environment() []string {
	env := []string{
		"LC_ALL=C", "HOME=" + g.aside.path, "TMPDIR=" + g.aside.path,
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS=", "GIT_NO_REPLACE_OBJECTS=1", "GIT_OPTIONAL_LOCKS=0",
	}
	for _, name := range gitEnv {
		if value := os.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	if file := os.Getenv("SSL_CERT_FILE"); file != "" && os.Getenv("GIT_SSL_CAINFO") == "" {
		env = append(env, "GIT_SSL_CAINFO="+file) // its TLS may know another variable
	}
	if g.header != "" { // not as an argument, which all users of the machine can read
		env = append(env, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader",
			"GIT_CONFIG_VALUE_0=Authorization: "+g.header)
	}
	return env
}

// options are before every command.
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

// maxListing bounds what git may say, in bytes.
const maxListing = 64 << 20

// output runs a command of git and returns what it says.
func (g *gitProgram) output(ctx context.Context, args ...string) (string, error) {
	var out string
	err := g.run(ctx, strings.NewReader(""), func(r io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(r, maxListing+1))
		if err == nil && len(data) > maxListing {
			err = fmt.Errorf("git says more than %d bytes", maxListing)
		}
		out = string(data)
		return err
	}, args...)
	return out, err
}

// run runs a command of git. read gets what it says; an error of it ends git. When run returns, git and what it has
// started are gone.
func (g *gitProgram) run(ctx context.Context, in io.Reader, read func(io.Reader) error, args ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append(g.options(), args...)...)
	cmd.Env, cmd.Dir = g.environment(), g.aside.path
	// If we die git does; until it has, it holds the lock of the directory that it writes to.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.ExtraFiles = []*os.File{g.aside.lock}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	var said tail
	cmd.Stdin, cmd.Stderr = in, &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return errors.New("there is no program git on this machine; install git")
		}
		return fmt.Errorf("start git: %w", err)
	}
	if g.limit > 0 { // before it can have asked for anything
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
		return fmt.Errorf("what the server sends: %w", tooLarge(g.limit))
	case err != nil:
		return &gitError{command: args[0], said: said.text(), err: err}
	}
	return nil
}

// full reports whether git has written a file that is as large as one may be: what writes it is killed then, and says
// nothing.
func (g *gitProgram) full() (full bool) {
	_ = filepath.WalkDir(g.dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			info, err := d.Info()
			full = full || err == nil && g.limit > 0 && info.Size() >= g.limit
		}
		return nil // what cannot be looked at is not it
	})
	return full
}

// gitError says that a command of git failed.
type gitError struct {
	command, said string
	err           error
}

func (e *gitError) Error() string {
	for line := range strings.SplitSeq(e.said, "\n") {
		for _, word := range []string{"fatal: ", "error: "} {
			if text, found := strings.CutPrefix(line, word); found { // the first says most
				return fmt.Sprintf("git %s: %s", e.command, printable(text, 300))
			}
		}
	}
	return fmt.Sprintf("git %s: %v", e.command, e.err)
}

func (e *gitError) Unwrap() error { return e.err }

// tail keeps the end of what is written to it.
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
