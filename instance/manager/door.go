package manager

import (
	"context"
	"crypto/rand"
	"net"
	"strings"

	"github.com/stepmux/stepmux/instance/manager/sshdoor"
)

// ServeSSH is sshdoor.Serve for the VMs of the Manager, until that is shut down or ctx ends.
func (m *Manager) ServeSSH(ctx context.Context, listener net.Listener, cfg sshdoor.Config) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.takes, cancel)() //nolint:contextcheck // the manager's end
	return sshdoor.Serve(ctx, listener, cfg, sshdoor.Host{
		Dir: m.cfg.Dir, Logger: m.cfg.Logger, Reserve: m.reserveForLogin,
	})
}

// reserveForLogin reserves the lease of a login.
func (m *Manager) reserveForLogin(
	ctx context.Context, r sshdoor.Request, waits func(ahead int) error,
) (*sshdoor.Slot, error) {
	l, _, _, err := m.reserve(ctx, leaseRequest{
		name: leaseName + "ssh-" + strings.ToLower(rand.Text()), brief: true, instance: r.Instance, labels: r.Labels,
	}, waits)
	if err != nil {
		return nil, err
	}
	return &sshdoor.Slot{Commands: l.commands, Release: func() {
		_ = m.release(m.life, l, endReleased) // logged there
	}}, nil
}
