package remote

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/fetch"
)

func TestMain(m *testing.M) {
	proc.Main()
	remotetest.PlayRole(play)
	goleak.VerifyTestMain(m)
}

// play runs the command role as cmd does: flags to a config, one call.
func play(role string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer stop()
	stdio := Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	if slices.Equal(os.Args[1:], fetchCommand[1:]) {
		return fetch.Answer(ctx, os.Stdin, os.Stdout)
	}
	switch role {
	case "serve":
		// Without isolation: the tests keep their files in /tmp.
		cfg := ServeConfig{Socket: os.Args[1], Options: vmconfig.Options{Isolation: vmconfig.Off}}
		if len(os.Args) > 2 {
			if cfg.Grace, err = time.ParseDuration(os.Args[2]); err != nil {
				return err
			}
		}
		return Serve(ctx, stdio, cfg)
	case "isolated":
		return Serve(ctx, stdio, ServeConfig{Socket: os.Args[1], Options: vmconfig.Options{Isolation: vmconfig.Processes}})
	case "guarded", "unguarded": // a serve that is told a secret
		cfg := ServeConfig{
			Socket: os.Args[1], SecretOnStdin: true, AllowUnauthenticated: role == "unguarded",
			Options: vmconfig.Options{Isolation: vmconfig.Off},
		}
		return Serve(ctx, stdio, cfg)
	case "reused": // a serve that its relay gives build after build, on a machine of any speed
		reuseBounds.end, reuseBounds.settle = time.Minute, time.Minute
		return Serve(ctx, stdio, ServeConfig{
			Socket: SocketOnStdin, SecretOnStdin: true, Reuse: true, Grace: 10 * time.Millisecond,
			Options: vmconfig.Options{Isolation: vmconfig.Level(os.Args[1])},
		})
	case "linger": // as the command: steps serve --socket PATH LINGER [--detached]
		cfg := ServeConfig{Socket: os.Args[4], SecretOnStdin: true}
		if cfg.Linger, err = time.ParseDuration(os.Args[5]); err != nil {
			return err
		}
		if len(os.Args) > 6 {
			cfg.Ready = func() { _ = pipe.LetGo() }
		} else {
			cfg.Detach = append(os.Args[1:], "--detached")
		}
		return Serve(ctx, stdio, cfg)
	case "hold":
		cfg := HoldConfig{}
		if cfg.Idle, err = time.ParseDuration(os.Args[1]); err != nil {
			return err
		}
		if _, err = os.Stdout.WriteString("signals are handled\n"); err != nil {
			return err
		}
		return Hold(ctx, cfg)
	case "spy":
		return spyRole(os.Args[1])
	case "proxy":
		return Proxy(ctx, stdio, ProxyConfig{Socket: os.Args[1]})
	case "relay":
		cfg := RelayConfig{TempDir: os.Args[1]}
		if cfg.Grace, err = time.ParseDuration(os.Args[2]); err != nil {
			return err
		}
		return Relay(ctx, stdio, cfg)
	}
	return remotetest.NoRole(role)
}
