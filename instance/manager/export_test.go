package manager

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Readers returns how many readers of logs the store knows.
func (m *Manager) Readers(t *testing.T) int {
	t.Helper()
	info, err := m.store.logs.Info(t.Context())
	require.NoError(t, err)
	return info.State.Consumers
}

// SweepProjects removes the projects that no build needs.
func (m *Manager) SweepProjects(t *testing.T, more int64) error {
	t.Helper()
	return m.sweepProjects(t.Context(), more)
}

// Holds returns how many VMs the manager of a cluster has.
func (m *Manager) Holds() int {
	m.cluster.mu.Lock()
	defer m.cluster.mu.Unlock()
	return len(m.cluster.held)
}

// SetGuestTime sets how long a connection may take to show the token, until the test ends, which must not be parallel.
func SetGuestTime(t *testing.T, d time.Duration) {
	before := guestTime
	guestTime = d
	t.Cleanup(func() { guestTime = before })
}

// SetStarted sets when a running build got its slot.
func (m *Manager) SetStarted(t *testing.T, id string, at time.Time) {
	t.Helper()
	m.mu.Lock()
	b := m.live[id]
	m.mu.Unlock()
	require.NotNil(t, b)
	require.NoError(t, m.change(b, func(r *record) { r.Started = at }))
}
