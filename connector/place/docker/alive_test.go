package docker

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAProcessIsDeadOnceItHasEnded(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	require.NoError(t, cmd.Start())
	here := strings.Fields(thisProcess())
	require.Len(t, here, 4)
	begun, _ := startOf(cmd.Process.Pid)
	its := fmt.Sprintf("%s %s %d %s", here[0], here[1], cmd.Process.Pid, begun)
	require.False(t, isDead(its))
	require.True(t, isDead(its+"0"), "another process has its number now")
	require.NoError(t, cmd.Process.Kill())
	require.Eventually(t, func() bool { return isDead(its) }, time.Minute, time.Millisecond, "nobody has waited for it")
	_ = cmd.Wait() // it was killed
	require.True(t, isDead(its))
}

// Of a process that may be one of another machine nobody here can tell.
func TestAProcessThatIsNotKnownIsNotDead(t *testing.T) {
	here := strings.Fields(thisProcess())
	for _, name := range []string{
		"", "x", "a b c d e", thisProcess(), "other " + strings.Join(here[1:], " "), here[0] + " pid:[1] 1 1",
		here[0] + " " + here[1] + " -1 1", here[0] + " " + here[1] + " x 1",
	} {
		require.False(t, isDead(name), name)
	}
}
