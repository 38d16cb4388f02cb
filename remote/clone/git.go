package clone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/netfault"
	"github.com/stepmux/stepmux/internal/oserr"
)

// fault is an error of the network, of a server or of this machine.
type fault struct{ error }

func (e fault) Unwrap() error { return e.error }

// IsFault reports whether the network, a server or this machine is at fault for an error of Clone, and not cfg or the
// repository.
func IsFault(err error) bool {
	_, is := errors.AsType[fault](err)
	return is || oserr.Exhausted(err)
}

// git runs git in the directory of a clone.
type git struct {
	cfg *Config
	settings
	login *login // nil without a password
}

// options returns the arguments that come before every git command.
func (g *git) options() []string {
	options := []string{
		"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=", "-c", "core.askPass=", "-c", "gc.auto=0",
		"-c", "maintenance.auto=false", "-c", "advice.detachedHead=false", "-c", "safe.directory=*",
		"-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=120",
	}
	server := strings.Join(strings.Split(g.cfg.URL, "/")[:3], "/")
	if g.authorities != "" {
		options = append(options, "-c", "http."+server+".sslCAInfo="+g.authorities)
	}
	if g.login != nil { // only for this server
		options = append(options, "-c", "credential.helper=", "-c", "credential."+server+".helper="+loginHelper)
	}
	return append(options, g.httpsForSSH()...)
}

// environment returns the environment of git.
func (g *git) environment() []string {
	env := make([]string, 0, len(g.cfg.Env)+3)
	for _, kv := range g.cfg.Env {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
			"GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_ASKPASS", "SSH_ASKPASS":
			continue
		}
		env = append(env, kv)
	}
	return append(env, "GIT_TERMINAL_PROMPT=0", "GIT_ALLOW_PROTOCOL=https:http", "LC_ALL=C")
}

// run runs a command of git.
func (g *git) run(ctx context.Context, args ...string) error {
	_, err := g.output(ctx, args...)
	return err
}

// command returns a command of git that has no login. It is killed when ctx ends.
func (g *git) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", append(g.options(), args...)...)
	cmd.Dir, cmd.Env = g.cfg.Dir, g.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// output runs a command of git, and returns the first line of its standard output.
func (g *git) output(ctx context.Context, args ...string) (string, error) {
	cmd := g.command(ctx, args...)
	var out, last limited
	cmd.Stdout, cmd.Stderr = &out, io.MultiWriter(&last, g.cfg.Output)
	if g.login != nil {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return "", err
		}
		defer null.Close()
		cmd.ExtraFiles = []*os.File{null, g.login.git} // descriptors 3 and 4
	}
	err := cmd.Run()
	isFault, _ := netfault.OfGit(last.String(), err)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return "", fault{errors.New("the program git is not installed on this machine; install it")}
	case err != nil && isFault:
		return "", fault{fmt.Errorf("git %s: %s", args[0], last.reason(err))}
	case err != nil:
		return "", fmt.Errorf("git %s: %s", args[0], last.reason(err))
	}
	line, _, _ := strings.Cut(out.String(), "\n")
	return line, nil
}

// maxOutput bounds the part of an output that is kept, in bytes.
const maxOutput = 8 << 10

// limited keeps the last maxOutput bytes that are written to it.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	l.Buffer.Write(p)
	if l.Len() > maxOutput {
		l.Next(l.Len() - maxOutput)
	}
	return len(p), nil
}

// reason returns the first line that says why git failed.
func (l *limited) reason(err error) string {
	for line := range strings.Lines(l.String()) {
		for _, word := range []string{"fatal: ", "error: "} {
			if text, found := strings.CutPrefix(line, word); found {
				return strings.TrimSpace(text)
			}
		}
	}
	return err.Error()
}
