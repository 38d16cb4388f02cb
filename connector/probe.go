package connector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

// maxAnswer bounds what a program that is asked something may say.
const maxAnswer = wire.MaxVersionText

// otherRunners are the commands of step runners that will do where none is configured and ours is missing.
var otherRunners = []string{"gitlab-runner", "step-runner"}

// findProgram returns the VM's step runner. It is looked for once for each connection, by the first build;
// the others wait for that. A relay that starts tells what it is; where none does the program is asked, in
// a session. What is missing or cannot run there is put there if cfg allows it.
func findProgram(ctx context.Context, conn *mux.Conn, cfg *Config) (*Program, error) {
	known, ask, err := cfg.VM.programOn(ctx, conn, cfg.Runner)
	if ask == nil {
		return known, err
	}
	f := &finder{conn: conn, cfg: cfg}
	p, err := f.find(ctx)
	if ctx.Err() != nil {
		ask.end(nil, nil) // our time was up: that says nothing to the others
		return nil, ctx.Err()
	}
	ask.end(p, err)
	if err != nil {
		return nil, err
	}
	cfg.Logger.Info("step runner found", "kind", p.Kind, "version", p.Version, "platform", p.Platform,
		"command", strings.Join(p.Command, " "), "uploaded", p.Uploaded)
	if p.Kind == Stepmux && p.Version != "" && cfg.Version != "" && p.Version != cfg.Version && cfg.VM.tellSkew() {
		cfg.Logger.Warn("the step runner on the VM is of another version than this program",
			"there", p.Version, "here", cfg.Version)
	}
	return p, nil
}

// finder looks for one VM's step runner.
type finder struct {
	conn *mux.Conn
	cfg  *Config
}

// find looks for the configured runner, and for what may take its place.
func (f *finder) find(ctx context.Context) (*Program, error) {
	p, err := f.look(ctx, f.cfg.Runner)
	bad := (*unusableError)(nil)
	if !errors.As(err, &bad) {
		return p, err
	}
	if len(f.cfg.Bootstrap) > 0 {
		p, err := f.bootstrap(ctx, bad)
		if err == nil || bad.program == nil || f.cfg.Route == Relay || isLost(err) || ctx.Err() != nil {
			return p, err
		}
		f.cfg.Logger.Warn("the VM keeps its stepmux, which has no relay for this program", "error", err)
		f.cfg.VM.judgeRelay(false, bad.Error())
		return bad.program, nil
	}
	if f.cfg.anyRunner && f.cfg.Route != Relay {
		for _, name := range bad.others {
			if p, err := f.ask(ctx, []string{name}); err == nil {
				f.cfg.VM.judgeRelay(false, bad.Error())
				return p, nil
			}
		}
	}
	return nil, bad.err
}

// look finds out what the runner command is: by its relay, which is needed anyway, or else by asking it. The
// error is an *unusableError for what another program could put right.
func (f *finder) look(ctx context.Context, runner []string) (*Program, error) {
	var refused error
	if f.cfg.Route == Auto || f.cfg.Route == Relay {
		r, err := startRelay(ctx, f.conn, f.cfg, runner)
		if err == nil {
			f.cfg.VM.forgetRelay()
			told := r.Program()
			return &Program{Kind: Stepmux, Version: told.Version, Platform: told.Platform, Command: runner}, nil
		}
		failed := (*relay.Error)(nil)
		switch {
		case errors.As(err, &failed) && failed.Version != 0:
			return f.otherProtocol(runner, failed, relayHint(runner, err))
		case errors.As(err, &failed) && (failed.ExitCode == 126 || failed.ExitCode == 127):
			return nil, f.unusable(ctx, runner, &ServeError{ExitCode: failed.ExitCode, Stderr: failed.Stderr, Err: failed.Err}, relayHint(runner, err))
		case !noRelay(err):
			return nil, err
		}
		refused = relayHint(runner, err)
	}
	p, err := f.ask(ctx, runner)
	switch {
	case err != nil && f.cfg.Route == Relay && !isLost(err) && len(f.cfg.Bootstrap) == 0:
		return nil, refused
	case err != nil:
		return nil, err
	case f.cfg.Route == Relay:
		return nil, refused
	case refused != nil:
		f.cfg.VM.judgeRelay(false, refused.Error())
	}
	return p, nil
}

// otherProtocol judges a stepmux whose relay speaks another version of the protocol.
func (f *finder) otherProtocol(runner []string, failed *relay.Error, hinted error) (*Program, error) {
	p := &Program{Kind: Stepmux, Command: runner}
	bad := &unusableError{err: hinted, what: fmt.Sprintf("speaks version %d of the relay's protocol", failed.Version), program: p}
	switch {
	case failed.Version < wire.RelayVersion && len(f.cfg.Bootstrap) > 0:
		return nil, bad
	case f.cfg.Route == Relay:
		return nil, hinted
	default:
		f.cfg.VM.judgeRelay(false, hinted.Error())
		return p, nil
	}
}

// ask runs `<runner> --version` in a session.
func (f *finder) ask(ctx context.Context, runner []string) (*Program, error) {
	out, stderr, err := f.run(ctx, versionArgv(runner))
	name := strings.Join(runner, " ")
	code := exitCode(err)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case isLost(err) || errors.Is(err, mux.ErrForbidden):
		return nil, err
	case err != nil && code < 0:
		return nil, &ServeError{ExitCode: -1, Stderr: stderr, Err: fmt.Errorf("ask %q for its version: %w", name, err), Hint: "is it a step runner?"}
	case err != nil:
		failed := &ServeError{ExitCode: code, Stderr: stderr, Err: fmt.Errorf("%q --version: %w", name, err)}
		return nil, f.unusable(ctx, runner, failed, nil)
	}
	told, err := wire.ParseVersionText(out)
	if err != nil {
		return nil, &ServeError{
			ExitCode: -1,
			Stderr:   stderr,
			Err:      fmt.Errorf("%q --version printed %s: %w", name, prefix(bytes.TrimSpace(out)), err),
			Hint:     "is the runner command a stepmux, a gitlab-runner or a step-runner?",
		}
	}
	p := &Program{Kind: StepRunner, Version: told.Version, Platform: told.Platform, Command: runner}
	if told.Name == wire.ProgramName {
		p.Kind = Stepmux
		if told.Protocol < wire.RelayVersion && len(f.cfg.Bootstrap) > 0 {
			return nil, &unusableError{
				err: fmt.Errorf("%q speaks version %d of the relay's protocol, this program version %d", name, told.Protocol, wire.RelayVersion), what: "is too old", program: p,
			}
		}
	}
	return p, nil
}

// errNoAnswer is the cause of a context whose program did not answer in time.
type errNoAnswer time.Duration

func (e errNoAnswer) Error() string { return fmt.Sprintf("no answer within %v", time.Duration(e)) }

// run runs a command that is to answer soon, in a session, with nothing on its stdin. It is for the command
// to end with that. The error is its process's, or errNoAnswer.
func (f *finder) run(ctx context.Context, argv []string) (out []byte, stderr string, err error) {
	said := &tail.Writer{}
	ctx, cancel := context.WithTimeoutCause(ctx, f.cfg.ReadyTimeout, errNoAnswer(f.cfg.ReadyTimeout))
	defer cancel()
	process, err := f.conn.Start(ctx, mux.Command{Argv: argv, Stderr: said})
	if err != nil {
		return nil, "", err
	}
	defer process.Close()
	defer context.AfterFunc(ctx, func() { process.Close() })()
	out, err = io.ReadAll(io.LimitReader(process, maxAnswer+1))
	if len(out) > maxAnswer {
		return nil, said.String(), fmt.Errorf("it printed more than %d bytes", maxAnswer)
	}
	if err == nil {
		err = process.Wait(ctx)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out, said.String(), err
}
