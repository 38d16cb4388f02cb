package services

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Symptom: a service with a port of its own was refused for a wrong one in the variables of its job, which it also has.
func TestTheLastPortOfAnEnvironmentCounts(t *testing.T) {
	port, err := Port("db", []string{"HEALTHCHECK_TCP_PORT=$PORT", "A=b", "HEALTHCHECK_TCP_PORT=5432"})
	require.NoError(t, err)
	require.Equal(t, 5432, port)
	_, err = Port("db", []string{"HEALTHCHECK_TCP_PORT=5432", "HEALTHCHECK_TCP_PORT="})
	require.EqualError(t, err, `service "db": HEALTHCHECK_TCP_PORT is "": want a port`)
	port, err = Port("db", nil)
	require.NoError(t, err)
	require.Zero(t, port)
	_, err = Port("db", []string{"A"})
	require.EqualError(t, err, `service "db": an entry of its environment is not KEY=VALUE`)
}
