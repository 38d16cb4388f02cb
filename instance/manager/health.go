package manager

import (
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/pause"
)

// maxExamined bounds how many VMs are examined at once.
const maxExamined = 16

// examine looks at the health of the VMs again and again, as long as builds are taken.
func (m *Manager) examine() {
	var group errgroup.Group
	group.SetLimit(maxExamined)
	defer group.Wait() //nolint:errcheck // it returns nil
	for m.takes.Err() == nil {
		vms := m.cfg.Group.Instances()
		apart := m.cfg.HealthPeriod / time.Duration(len(vms)+1)
		for _, in := range vms {
			if pause.For(m.takes, apart) != nil {
				return
			}
			if !m.fleet.Has(in.ID) {
				continue
			}
			group.Go(func() error {
				if err := m.cfg.Provider.Examine(m.takes, in.ID); err != nil && !errors.Is(err, instance.ErrUnknown) {
					m.cfg.Logger.Debug("the health of a VM is not known", "instance", in.ID, "error", err)
				}
				return nil
			})
		}
		_ = pause.For(m.takes, apart)
	}
}
