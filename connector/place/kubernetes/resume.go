package kubernetes

import (
	"context"
	"fmt"
	"net/http"
	"strings"
)

// At names the pod, for Attach in another process.
func (p *Pod) At() string { return p.name + "/" + p.uid }

// Leave makes Close leave the pod running: its build continues until another process attaches to it, or its linger is
// over.
func (p *Pod) Leave() { p.left.Store(true) }

// Attach returns the Pod of a build that another process has started, by its At, with a link to it. cfg needs no
// Spec and no Programs. ctx and the build's linger bound the call: after that time the build no longer exists. The
// error wraps connector.ErrGone if the cluster has no such pod, or the pod has ended. The caller closes the Pod,
// which removes it unless Leave was called.
func Attach(ctx context.Context, cfg Config, at string) (*Pod, error) {
	name, uid, ok := strings.Cut(at, "/")
	if !ok || !namePattern.MatchString(name) || uid == "" {
		return nil, fmt.Errorf("kubernetes: %.160q is no place of a pod", at)
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Linger,
		fmt.Errorf("pod %s could not be reached for the time of the build's linger", name))
	defer cancel()
	p := newPod(ctx, cfg, name)
	p.uid = uid
	if err := p.attach(ctx); err != nil {
		p.Leave() // another manager may have it; it ends by itself
		_ = p.Close(ctx)
		return nil, err
	}
	return p, nil
}

func (p *Pod) attach(ctx context.Context) (err error) {
	var now object
	err = persist(ctx, isPassing, func() error {
		_, err := p.cluster.call(ctx, "look for pod "+p.name, http.MethodGet, p.cluster.podPath(p.name), nil, nil, &now)
		return err
	})
	switch {
	case isCode(err, http.StatusNotFound):
		p.gone()
	case err != nil:
		return err
	case p.update(&now):
		p.wg.Go(func() { p.watch(p.life) })
	}
	p.cfg.Spec.Image = now.image()
	p.first, err = p.reconnect(ctx)
	return err
}
