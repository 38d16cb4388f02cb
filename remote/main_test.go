package remote

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/proc"
)

// roleVar makes the test binary a command of the VM's end instead.
const roleVar = "STEPMUX_TEST_ROLE"

func TestMain(m *testing.M) {
	proc.Main()
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(runRole(role))
	}
	goleak.VerifyTestMain(m)
}

// runRole is what cmd does for the command role: flags to a config, one call, error to exit code.
func runRole(role string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer stop()
	stdio := Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	var err error
	switch role {
	case "serve":
		cfg := ServeConfig{Socket: os.Args[1]}
		if len(os.Args) > 2 {
			if cfg.Grace, err = time.ParseDuration(os.Args[2]); err != nil {
				break
			}
		}
		err = Serve(ctx, stdio, cfg)
	case "guarded", "unguarded": // a serve that is told a secret
		err = Serve(ctx, stdio, ServeConfig{Socket: os.Args[1], SecretOnStdin: true, AllowUnauthenticated: role == "unguarded"})
	case "spy":
		err = spyRole(os.Args[1])
	case "proxy":
		err = Proxy(ctx, stdio, ProxyConfig{Socket: os.Args[1]})
	case "relay", "concealed relay":
		cfg := RelayConfig{TempDir: os.Args[1]}
		if cfg.Grace, err = time.ParseDuration(os.Args[2]); err != nil {
			break
		}
		if role == "concealed relay" {
			err = Relay(ctx, stdio, cfg)
			break
		}
		err = runRelay(ctx, stdio, cfg, defaultRelayLimits, syscall.ForkExec) // of which tests count the open files
	case "dial": // connects as whoever runs it, and reports what it reads
		err = dialRole(os.Args[1])
	case "listen": // until stdin ends
		err = listenRole(os.Args[1])
	default:
		err = fmt.Errorf("no role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
