package kubernetes

import (
	"context"
	"errors"
	"io"
)

// Execute executes a command in a pod's container build, with these bytes as its stdin, and returns its output and its
// end.
func (c *Cluster) Execute(ctx context.Context, pod, stdin string, argv ...string) (out string, end error) {
	s, err := c.execute(ctx, pod, buildName, io.Discard, argv...)
	if err != nil {
		return "", err
	}
	defer s.Close()
	if _, err := io.WriteString(s, stdin); err != nil {
		return "", err
	}
	if err := s.CloseWrite(); err != nil {
		return "", err
	}
	text, err := io.ReadAll(s)
	return string(text), errors.Join(err, s.exit(ctx))
}

// Reap looks for pods that were left.
func (c *Cluster) Reap(ctx context.Context) error { return c.reapNow(ctx) }

// Manifest returns the pod that Start makes.
func Manifest(cfg Config) (map[string]any, error) {
	return (&Pod{cfg: cfg, name: podName(cfg.BuildID)}).manifest([]string{"stepmux"})
}

// UseSPDY lets execs go by SPDY, as with an API server that takes no WebSockets.
func (c *Cluster) UseSPDY() { c.spdy.Store(true) }
