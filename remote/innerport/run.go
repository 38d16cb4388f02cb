package innerport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
)

// The exit codes of a program that cannot be executed, and of one that is missing, as of a shell.
const exitNotExecutable, exitMissing = 126, 127

// Run runs a program, with the standard files of this process, and returns its exit code. As long as it runs,
// connections to address go on to the unix socket. If this process cannot listen there, it says so to stderr, and the
// program runs all the same. Signals to this process go to the program.
func Run(ctx context.Context, address, socket string, argv []string, stderr io.Writer) int {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1,
		syscall.SIGUSR2)
	defer signal.Stop(signals)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, end := context.WithCancel(context.WithoutCancel(ctx)) // a signal ends the program, not this
	defer end()
	if listener, err := net.Listen("tcp", address); err != nil {
		fmt.Fprintf(stderr, "stepmux: the services for artifacts and caches are not there: %v\n", err)
	} else {
		defer listener.Close()
		wg.Go(func() {
			serve(ctx, &wg, listener, func() (net.Conn, error) { return net.Dial("unix", socket) })
		})
	}
	cmd := exec.Command(argv[0], argv[1:]...) // it ends by itself, or by a signal
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if errors.Is(cmd.Err, exec.ErrDot) {
		cmd.Err = nil // the image has chosen that place
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(stderr, "stepmux: start the program of the container: %v\n", err)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
			return exitMissing
		}
		return exitNotExecutable
	}
	wg.Go(func() {
		for {
			select {
			case s := <-signals:
				_ = cmd.Process.Signal(s) // it may have ended
			case <-ctx.Done():
				return
			}
		}
	})
	_ = cmd.Wait() // the state says it
	if state, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && state.Signaled() {
		return 128 + int(state.Signal())
	}
	return cmd.ProcessState.ExitCode()
}
