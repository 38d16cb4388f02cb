package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// startRunning starts a build with a job that runs until end is called. It returns when the job has written a byte.
func (v *vm) startRunning(
	b *testing.B, conn *mux.Conn, known *connector.VM, route connector.Route,
) (end func() error, err error) {
	c, err := v.newConnector(b, conn, known, route)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(b.Context())
	up := &firstWrite{came: make(chan struct{})}
	ended := make(chan error, 1)
	end = func() error {
		cancel()
		err := <-ended
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		return errors.Join(err, c.Close(context.WithoutCancel(ctx)))
	}
	if _, err := c.Connect(ctx); err != nil {
		ended <- nil
		return nil, errors.Join(err, end())
	}
	go func() {
		_, err := c.Execute(ctx, connector.Job{Job: &stepmuxv1.Job{Script: "echo up; exec sleep 600"}}, up)
		ended <- err
	}()
	select {
	case <-up.came:
		return end, nil
	case err := <-ended:
		ended <- nil
		return nil, errors.Join(fmt.Errorf("the job ended: %w", err), end())
	}
}

// firstWrite closes came at its first Write.
type firstWrite struct {
	once sync.Once
	came chan struct{}
}

func (w *firstWrite) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.came) })
	return len(p), nil
}
