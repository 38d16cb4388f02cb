package stockmanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"
)

// SSH is the part of config.toml for a runner with the ssh executor: it logs in once for each job, and runs each of the
// job's scripts in a session with a login shell.
type SSH struct {
	Addr string // host:port
	// Config is that of each login.
	Config    *ssh.ClientConfig
	BuildsDir string
}

// Execute runs a job. When ctx ends, the script that runs gets SIGKILL and its session is closed.
func (s *SSH) Execute(ctx context.Context, job CustomJob) CustomResult {
	client, err := ssh.Dial("tcp", s.Addr, s.Config)
	if err != nil {
		return resultOf(err)
	}
	defer client.Close()
	log := &buildLog{w: cmp.Or[io.Writer](job.Log, io.Discard)}
	defer log.detach()
	dir := path.Join(s.BuildsDir, strconv.FormatInt(job.ID, 10))
	for _, next := range job.Stages {
		if err != nil && !next.Always {
			continue
		}
		text := script(Job{BuildDir: dir, Variables: job.Variables}, stage{next.Name, next.Script + "\n"})
		if stageErr := runLogin(ctx, client, next.Name, text, log); err == nil {
			err = stageErr
		}
	}
	return resultOf(err)
}

// runLogin runs a script in a session of its own.
func runLogin(ctx context.Context, client *ssh.Client, stage, script string, log io.Writer) error {
	session, err := client.NewSession()
	if err != nil {
		return fmt.Errorf("%s: %w", stage, err)
	}
	defer func() { _ = session.Close() }() // it has ended, or the connection has
	defer context.AfterFunc(ctx, func() { _, _ = session.Signal(ssh.SIGKILL), session.Close() })()
	session.Stdin, session.Stdout, session.Stderr = strings.NewReader(script), log, log
	err = session.Run("bash -l")
	if exit, ok := errors.AsType[*ssh.ExitError](err); ok && ctx.Err() == nil {
		return &buildError{exit.ExitStatus(), stage}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", stage, errors.Join(err, context.Cause(ctx)))
	}
	return nil
}
