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

	"github.com/stepmux/stepmux/internal/netfault"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/termtext"
)

// gitProgram runs git on a private bare repository, dir. No configuration of the machine, the user or a repository has
// any effect on it. The owner calls close.
type gitProgram struct {
	from   *repository
	proxy  *loginProxy // in front of from; nil without a login
	url    string      // the address of from for git
	tmp    *scratch
	dir    string
	limits limits // total bounds each file that git writes
	// fsck makes git check the objects that it fetches. It must be false for a fetch with a filter, as that for the full
	// name of a commit: git 2.39 cannot ignore oldMistakes then.
	fsck bool
}

// newGit makes a repository in tmp, to fetch from another. format is the object format, sha1 or sha256.
func (f *fetcher) newGit(ctx context.Context, from *repository, tmp *scratch, format string) (*gitProgram, error) {
	g := &gitProgram{from: from, url: from.url, tmp: tmp, dir: filepath.Join(tmp.path, "git"), limits: f.limits}
	if from.login != nil {
		var err error
		if g.proxy, err = newLoginProxy(ctx, from, f.client.Transport); err != nil {
			return nil, err
		}
		g.url = g.proxy.url()
	}
	if from.local { // it may have another owner; git passes on no -c of that setting to the program that reads there
		if err := os.WriteFile(g.ownerConfig(), []byte("[safe]\n\tdirectory = *\n"), 0o600); err != nil {
			return nil, oserr.Bare(err)
		}
	}
	if _, err := g.output(ctx, "init", "--quiet", "--bare", "--template=", "--object-format="+format); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// close ends the proxy of git, if it has one.
func (g *gitProgram) close() {
	if g.proxy != nil {
		g.proxy.close()
	}
}

// gitEnv are the variables of our environment that git gets, to find programs and the network.
var gitEnv = []string{
	"PATH", "http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH",
}

// ownerConfig is the path of a configuration by which git reads repositories of other owners.
func (g *gitProgram) ownerConfig() string { return filepath.Join(g.tmp.path, "gitconfig") }

func (g *gitProgram) environment() []string {
	allowed, config := "https:http", os.DevNull
	if g.from.local {
		allowed, config = "file", g.ownerConfig()
	}
	env := []string{
		"GIT_ALLOW_PROTOCOL=" + allowed, "LC_ALL=C", "HOME=" + g.tmp.path, "TMPDIR=" + g.tmp.path,
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_GLOBAL=" + config, "GIT_ATTR_NOSYSTEM=1",
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
	return env
}

// oldMistakes are the names by which git's fsck calls mistakes in the lines of a commit about people and times, and in
// the spelling of modes. Histories have them from programs of their time, and they do no harm.
var oldMistakes = []string{
	"badDate", "badDateOverflow", "badEmail", "badName", "badTimezone", "missingEmail", "missingSpaceBeforeDate",
	"missingSpaceBeforeEmail", "multipleAuthors", "zeroPaddedDate", "zeroPaddedFilemode",
}

// options returns the arguments that come before every git command.
func (g *gitProgram) options() []string {
	options := []string{"--git-dir=" + g.dir}
	for _, setting := range []string{
		"http.followRedirects=false", "http.lowSpeedLimit=1",
		fmt.Sprintf("http.lowSpeedTime=%d", int(g.limits.stall.Seconds())),
		"core.hooksPath=/dev/null", "core.fsmonitor=", "core.attributesFile=/dev/null", "core.askPass=", "credential.helper=",
		"fetch.unpackLimit=1", "gc.auto=0", "maintenance.auto=false", "submodule.recurse=false",
	} {
		options = append(options, "-c", setting)
	}
	if g.fsck {
		options = append(options, "-c", "fetch.fsckObjects=true")
		for _, name := range oldMistakes {
			options = append(options, "-c", "fetch.fsck."+name+"=ignore")
		}
	}
	if g.proxy != nil {
		options = append(options, g.proxy.options()...)
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
	// git is killed when we die. Until then it holds the lock of the directory that it writes to.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.ExtraFiles = []*os.File{g.tmp.lock}
	if g.proxy != nil {
		socket, err := g.proxy.socket()
		if err != nil {
			return err
		}
		defer socket.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, socket)
	}
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
			return fault{error: errors.New("the program git is not installed on this machine, or only where jobs can put one; " +
				"install it")}
		}
		return fault{error: fmt.Errorf("start git: %w", err)}
	}
	defer reap(cmd.Process.Pid) // after Wait
	// The limit is set before git can have received anything.
	most := unix.Rlimit{Cur: uint64(g.limits.total), Max: uint64(g.limits.total)}
	if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_FSIZE, &most, nil); err != nil && !errors.Is(err, unix.ESRCH) {
		cancel()
		return fault{error: errors.Join(fmt.Errorf("limit git: %w", err), cmd.Wait())}
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
		return fmt.Errorf("the data of the server: %w", tooLarge(g.limits.total))
	case err != nil && g.proxy != nil && g.proxy.cause() != nil:
		return g.proxy.cause()
	case err != nil:
		return &gitError{args[0], strings.ReplaceAll(stderr.text(), g.url, g.from.url), err}
	}
	return nil
}

// reap kills the remaining processes of a group whose leader was waited for, and waits for them. They are children of
// this process if it is a child subreaper, as a step runner is; otherwise the machine's init waits for them.
func reap(group int) {
	for {
		pid, err := unix.Wait4(-group, nil, unix.WNOHANG, nil)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR): // there is no such child
			return
		case pid == 0: // it has not ended
			_ = unix.Kill(-group, unix.SIGKILL)
			_, _ = unix.Wait4(-group, nil, 0, nil)
		}
	}
}

// full reports whether a file of git has reached the limit. The kernel then kills the process that writes it, without a
// message.
func (g *gitProgram) full() (full bool) {
	_ = filepath.WalkDir(g.dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			info, err := d.Info()
			full = full || err == nil && info.Size() >= g.limits.total
		}
		return nil // a removed file has not reached it
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
			if text, found := strings.CutPrefix(line, word); found { // the first such line says the most
				return fmt.Sprintf("git %s: %s", e.command, termtext.Short(text, 300))
			}
		}
	}
	return fmt.Sprintf("git %s: %v", e.command, e.err)
}

func (e *gitError) Unwrap() error { return e.err }

// isFault reports whether the network, the server or this machine is at fault, and whether it is not this machine.
func (e *gitError) isFault() (is, server bool) { return netfault.OfGit(e.stderr, e.err) }

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
