package place

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Symptom: a service with a port of its own was refused for a wrong one in the variables of its job, which it also has.
func TestTheLastPortOfAnEnvironmentCounts(t *testing.T) {
	env := []string{"HEALTHCHECK_TCP_PORT=$PORT", "A=b", "HEALTHCHECK_TCP_PORT=5432"}
	port, err := (&Service{Image: "db", Env: env}).Port()
	require.NoError(t, err)
	require.Equal(t, 5432, port)
	_, err = (&Service{Image: "db", Env: []string{"HEALTHCHECK_TCP_PORT=5432", "HEALTHCHECK_TCP_PORT="}}).Port()
	require.EqualError(t, err, `service "db": HEALTHCHECK_TCP_PORT is "": want a port`)
	port, err = (&Service{Image: "db"}).Port()
	require.NoError(t, err)
	require.Zero(t, port)
	_, err = (&Service{Image: "db", Env: []string{"A"}}).Port()
	require.EqualError(t, err, `service "db": an entry of its environment is not KEY=VALUE`)
}
