package manager

import (
	"testing"

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
