package relay_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/remote"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/relay"
)

func TestMain(m *testing.M) {
	proc.Main()
	remotetest.PlayRole(play)
	goleak.VerifyTestMain(m)
}

// play runs a serve, or a relay that other processes can look into, so that tests can count its open files.
func play(role string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer stop()
	switch role {
	case "serve":
		stdio := remote.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
		return remote.Serve(ctx, stdio, remote.ServeConfig{Socket: os.Args[1]})
	case "linger", "linger late": // as the command: steps serve --socket PATH --linger LINGER [--detached]
		cfg := remote.ServeConfig{Socket: os.Args[4], SecretOnStdin: true}
		if cfg.Linger, err = time.ParseDuration(os.Args[6]); err != nil {
			return err
		}
		if len(os.Args) == 7 {
			cfg.Detach = append(os.Args[1:], "--detached")
		}
		stdio := remote.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
		if role == "linger late" && cfg.Detach != nil {
			stdio.Err = lateWriter{ctx}
		}
		return remote.Serve(ctx, stdio, cfg)
	case "relay":
		if len(os.Args) > 5 && slices.Equal(os.Args[1:4], []string{"steps", "serve", "--socket"}) { // started by a relay
			cfg := remote.ServeConfig{
				Socket: os.Args[4], Reuse: slices.Contains(os.Args, "--reuse"),
				Options: vmconfig.Options{Isolation: vmconfig.Processes},
			}
			if slices.Contains(os.Args, "--linger") {
				cfg.Linger, cfg.SecretOnStdin = time.Hour, true
			}
			return remote.Serve(ctx, remote.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, cfg)
		}
		cfg := relay.Config{TempDir: os.Args[1]}
		if cfg.Grace, err = time.ParseDuration(os.Args[2]); err != nil {
			return err
		}
		if err := relay.Run(ctx, os.Stdin, os.Stdout, os.Stderr, cfg); err != nil {
			return fmt.Errorf("relay: %w", err)
		}
		return nil
	}
	return remotetest.NoRole(role)
}

// lateWriter is the standard error of a process that tells the marker only when it is told to end itself.
type lateWriter struct{ ctx context.Context } // it is the writer's life

func (w lateWriter) Write(p []byte) (int, error) {
	_, _ = os.Stderr.WriteString("it listens\n")
	<-w.ctx.Done()
	return os.Stderr.Write(p)
}
