package login

import "time"

// SetHostKeyCommandTime changes the time limit of a command for host keys, until the test ends.
func SetHostKeyCommandTime(t interface{ Cleanup(func()) }, d time.Duration) {
	old := hostKeyCommandLimit
	hostKeyCommandLimit.Time = d
	t.Cleanup(func() { hostKeyCommandLimit = old })
}

// SetAgentTime changes the time limit of an exchange with an agent, until the test ends.
func SetAgentTime(t interface{ Cleanup(func()) }, d time.Duration) {
	old := agentTimeout
	agentTimeout = d
	t.Cleanup(func() { agentTimeout = old })
}
