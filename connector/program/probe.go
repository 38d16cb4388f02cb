package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

// maxAnswer bounds the output of a program that is asked for its version, its platform or its path.
const maxAnswer = wire.MaxVersionText

// silentShare is the part of Config.Timeout that a login gets to begin a command, as a divisor, if the start of a relay
// there has waited in vain before.
const silentShare = 6

// Leave is the mux.Command.Leave of commands whose output is small.
const Leave = time.Second

// otherRunners are the step runners that may replace the default one if that is missing.
var otherRunners = []string{"gitlab-runner", "step-runner"}

// finder looks for one VM's step runner.
type finder struct {
	Config
	noRelay Refusal
	silent  bool // a relay did not say hello, and it is not known whether the login has run it
	sent    bool // the last upload had to send the program: it was not there yet
}

// Refusal is the reason why the VM's program has no relay.
type Refusal struct {
	// Reason is empty if the program has a relay or no relay was wanted.
	Reason string
	// Lasts is true if the program cannot have a relay that this program understands. Otherwise another try may
	// succeed.
	Lasts bool
}

// Find returns the VM's step runner. If its relay starts, the relay reports the program; otherwise the program is
// asked in a session. A program that is missing or cannot run is replaced if cfg allows it. If ctx ends first, the
// error names the command that had not answered.
func Find(ctx context.Context, cfg Config) (p *Program, noRelay Refusal, err error) {
	f := &finder{Config: cfg}
	p, err = f.find(ctx)
	return p, f.noRelay, err
}

func (f *finder) find(ctx context.Context) (*Program, error) {
	p, err := f.look(ctx, f.Runner)
	bad, ok := errors.AsType[*unusableError](err)
	if !ok {
		return p, err
	}
	if len(f.Bootstrap) > 0 {
		p, err := f.bootstrap(ctx, bad)
		if err == nil || bad.program == nil || f.Relay == OnlyRelay || mux.IsLost(err) || ctx.Err() != nil {
			return p, err
		}
		f.Logger.Warn("the VM keeps its stepmux, which has no relay for this program", "error", err)
		f.noRelay = Refusal{bad.Error(), true}
		return bad.program, nil
	}
	if f.Others && f.Relay != OnlyRelay {
		for _, name := range bad.others {
			if p, err := f.askVersion(ctx, []string{name}); err == nil {
				f.noRelay = Refusal{bad.Error(), true}
				return p, nil
			}
		}
	}
	return nil, bad.err
}

// look examines the program of a runner command: by starting its relay, which is needed anyway, or else by asking for
// its version. The error is an *unusableError if another program may be usable.
func (f *finder) look(ctx context.Context, runner []string) (*Program, error) {
	var refused error
	if f.Relay != NoRelay {
		started, err := f.StartRelay(ctx, runner)
		if err == nil {
			f.noRelay = Refusal{}
			told := started.Program()
			p := &Program{Kind: Stepmux, Version: told.Version, Platform: told.Platform, Command: runner, Linger: told.Linger}
			return p, nil
		}
		failed, ok := errors.AsType[*relay.Error](err)
		switch {
		case ok && failed.Version != 0:
			return f.otherProtocol(runner, failed, err)
		case ok && (failed.ExitCode == 126 || failed.ExitCode == 127):
			missing := &ServeError{ExitCode: failed.ExitCode, Stderr: failed.Stderr, Err: failed.Err}
			return nil, f.unusable(ctx, runner, missing, err)
		case !HasNoRelay(err):
			return nil, err
		}
		refused, f.silent = err, ok && failed.ExitCode == 0
	}
	p, err := f.askVersion(ctx, runner)
	switch {
	case err != nil && f.Relay == OnlyRelay && !mux.IsLost(err) && !errors.Is(err, ErrNotRun) && len(f.Bootstrap) == 0:
		return nil, refused
	case err != nil:
		return nil, err
	case f.Relay == OnlyRelay:
		return nil, refused
	case refused != nil:
		f.noRelay.Reason = refused.Error()
	}
	return p, nil
}

// otherProtocol handles a stepmux whose relay speaks another version of the protocol.
func (f *finder) otherProtocol(runner []string, failed *relay.Error, hinted error) (*Program, error) {
	p := &Program{Kind: Stepmux, Command: runner}
	switch {
	case failed.Version < wire.RelayVersion && len(f.Bootstrap) > 0:
		problem := fmt.Sprintf("speaks version %d of the relay's protocol", failed.Version)
		return nil, &unusableError{err: hinted, problem: problem, program: p}
	case f.Relay == OnlyRelay:
		return nil, hinted
	default:
		f.noRelay = Refusal{hinted.Error(), true}
		return p, nil
	}
}

// askVersion runs `<runner> --version` in a session. It also sets noRelay if the program cannot have a relay.
func (f *finder) askVersion(ctx context.Context, runner []string) (*Program, error) {
	out, stderr, err := f.run(ctx, slices.Concat(runner, []string{"--version"}), versionArgv(runner))
	name := strings.Join(shown(runner), " ")
	code := mux.ExitCode(err)
	switch {
	case ctx.Err() != nil:
		return nil, unanswered(name+" --version", stderr)
	case mux.IsLost(err) || errors.Is(err, mux.ErrForbidden) || errors.Is(err, ErrNotRun):
		return nil, err
	case strings.Contains(stderr, inputEnded):
		err = fmt.Errorf("ask %q for its version: its standard input had ended", name)
		return nil, notStarted(err, "", InputHint)
	case err != nil && code < 0:
		return nil, notStarted(fmt.Errorf("ask %q for its version: %w", name, err), stderr, "is it a step runner?")
	case err != nil:
		failed := &ServeError{ExitCode: code, Stderr: stderr, Err: fmt.Errorf("%q --version: %w", name, err)}
		return nil, f.unusable(ctx, runner, failed, nil)
	}
	told, err := wire.ParseVersionText(out)
	if err != nil {
		text := bytes.TrimSpace(out)
		err = fmt.Errorf("%q --version printed %q: %w", name, text[:min(len(text), 80)], err)
		return nil, notStarted(err, stderr, "is the runner command a stepmux, a gitlab-runner or a step-runner?")
	}
	p := &Program{Kind: StepRunner, Version: told.Version, Platform: told.Platform, Command: runner}
	f.noRelay.Lasts = told.Name != wire.ProgramName || told.Protocol < wire.RelayVersion
	if told.Name == wire.ProgramName {
		p.Kind, p.Linger = Stepmux, told.Linger
		if told.Protocol < wire.RelayVersion && len(f.Bootstrap) > 0 {
			err := fmt.Errorf("%q speaks version %d of the relay's protocol, this program version %d",
				name, told.Protocol, wire.RelayVersion)
			return nil, &unusableError{err: err, problem: "is too old", program: p}
		}
	}
	return p, nil
}

// run runs a command in a session, with an open but silent stdin. Its script begins with beginMark, and out is the
// text after that. name is the command for people. After Timeout run closes the session, and the command ends with its
// stdin. The error wraps ErrNotRun if the login did not run the script.
func (f *finder) run(ctx context.Context, name, argv []string) (out []byte, stderr string, err error) {
	said, life, wait := &tail.Writer{}, ctx, f.Timeout
	ctx, cancel := context.WithTimeoutCause(ctx, f.Timeout, noAnswer(f.Timeout))
	defer cancel()
	process, err := f.Conn.Start(ctx, mux.Command{Argv: argv, Stderr: said, Leave: Leave})
	if err != nil {
		return nil, "", err
	}
	defer process.Close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(ctx, func() { process.Close() })()
	if f.silent {
		wait /= silentShare
	}
	late := time.AfterFunc(wait, func() { stop(noAnswer(wait)) })
	defer late.Stop()
	began, status := false, -1
	for buf := make([]byte, 4<<10); err == nil && len(out) <= maxAnswer; {
		var n int
		n, err = process.Read(buf)
		out = append(out, buf[:n]...)
		if _, after, found := bytes.Cut(out, []byte(begun)); found && !began {
			began, out = true, after
			late.Stop()
		}
		if text, told, found := bytes.Cut(out, []byte(ended)); found && status < 0 && bytes.HasSuffix(told, []byte("\n")) {
			status, _ = strconv.Atoi(string(bytes.TrimSpace(told)))
			out = text
			late = time.AfterFunc(Leave, func() { stop(errLeft) })
			defer late.Stop()
		}
	}
	switch {
	case len(out) > maxAnswer:
		err = fmt.Errorf("the command printed more than %d bytes", maxAnswer)
	case errors.Is(err, io.EOF):
		err = process.Wait(ctx)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	switch {
	case errors.Is(err, errLeft) && status == 0:
		err = nil
	case errors.Is(err, errLeft):
		err = &mux.ExitError{Status: status}
	}
	if !began && life.Err() == nil && !mux.IsLost(err) {
		if err == nil {
			err = errors.New("exit status 0")
		}
		return nil, "", notRun(name, err, out, said.String())
	}
	return out, said.String(), err
}

// errLeft ends the wait for the end of a script's output, when the script has ended.
var errLeft = errors.New("another process has its output")

// noAnswer is the error of a command that did not answer in time.
func noAnswer(wait time.Duration) error { return fmt.Errorf("no answer within %v", wait) }
