package instance_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// hostileEndsVar is the number of builds of TestHostileEndsLeaveNothing.
const hostileEndsVar = "STEPMUX_HOSTILE_ENDS"

// hostileEnds are jobs that withstand their end. They say "up" once they do, and have MARK in the arguments of their
// processes.
var hostileEnds = []struct{ name, text string }{
	{"setsid", `setsid sh -c 'trap "" TERM HUP INT; while :; do sleep 7; done' $MARK >/dev/null 2>&1 &
		until pgrep -f $MARK >/dev/null; do sleep 0.01; done; echo up`},
	{"a subreaper without a marker", `$TOOL daemon $MARK; echo up`},
	{"a fork storm", `for i in 1 2 3 4; do
			sh -c 'trap "" TERM; while :; do (sh -c "sleep 3; :" $0 & ); sleep 0.02; done' $MARK >/dev/null 2>&1 &
		done; echo up; sleep 0.2`},
	{"stop all", `sh -c 'trap "" TERM; echo up; kill -STOP -1; sleep 600' $MARK &
		sleep 0.05; kill -STOP 1; kill -STOP -1`},
	{"kill all", `$TOOL daemon $MARK; echo up; trap '' TERM HUP INT; kill -9 1; kill -9 -1; sleep 600`},
	{"crash the init", `$TOOL daemon $MARK; echo up
		for s in TERM HUP INT QUIT ABRT SEGV BUS FPE ILL SYS TRAP; do kill -$s 1; done`},
	{"trace the init and itself", `$TOOL daemon $MARK; $TOOL ptrace 1; (sleep 600; : $MARK) & $TOOL ptrace $!; echo up`},
	{"fill the limit of processes", `echo up; ulimit -u $(($(ls -d /proc/[0-9]* | wc -l) + 40)) || :
		i=0; while [ $i -lt 60 ]; do sh -c 'trap "" TERM; sleep 600; :' $MARK >/dev/null 2>&1 & i=$((i + 1)); done`},
	{"namespaces of its own", `unshare -Urpmf --mount-proc sh -c 'trap "" TERM; sleep 600; :' $MARK >/dev/null 2>&1 &
		echo up; sleep 0.1`},
	{"starve the init", `$TOOL daemon $MARK; prlimit --pid 1 --nofile=1 --nproc=1 --as=1 2>/dev/null; echo up`},
}

func TestHostileEndsLeaveNothing(t *testing.T) {
	n, err := strconv.Atoi(cmp.Or(os.Getenv(hostileEndsVar), strconv.Itoa(len(hostileEnds))))
	require.NoError(t, err, hostileEndsVar)
	var sites []*site
	for _, route := range isolationRoutes {
		s := newSite(t, vmconfig.Processes, route)
		s.tool(t)
		sites = append(sites, s)
	}
	var group errgroup.Group
	group.SetLimit(4)
	var mu sync.Mutex // guards the following
	var longest time.Duration
	left := 0
	for i := range n {
		group.Go(func() error {
			took, err := sites[i%len(sites)].endHostile(t.Context(), i)
			mu.Lock()
			defer mu.Unlock()
			longest = max(longest, took)
			if err != nil {
				left++
			}
			return err
		})
	}
	err = group.Wait()
	t.Logf("%d hostile ends, %d left something; %v at most from the end of a build until all was gone", n, left, longest)
	require.NoError(t, err)
	for _, s := range sites {
		require.NoError(t, s.p.Close())
		s.requireClean(t)
	}
}

// endHostile runs build i, and returns how long after its end something of it was still there. Every other build is
// cancelled.
func (s *site) endHostile(ctx context.Context, i int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, sshtest.Bound)
	defer cancel()
	h, id := hostileEnds[i%len(hostileEnds)], fmt.Sprintf("b%d", i)
	mark := "hostile" + filepath.Base(s.tmp) + id + "."
	up := &signalled{on: "up\n", done: make(chan struct{})}
	e := s.p.Executor(instance.Build{ID: id, Log: up})
	err := e.Prepare(ctx)
	if err == nil {
		_, err = e.Connect(ctx)
	}
	if err != nil {
		err = errors.Join(err, e.Cleanup(context.WithoutCancel(ctx)))
		return 0, fmt.Errorf("connect to run %s: %w", h.name, err)
	}
	job := script(h.text)
	job.Env = map[string]string{"MARK": mark, "TOOL": filepath.Join(s.home, toolName)}
	job.Grace = durationpb.New(100 * time.Millisecond)
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- e.Execute(running, job) }()
	select {
	case <-up.done:
	case err := <-ended:
		ended <- err
	}
	if i/len(hostileEnds)%2 == 0 || h.name == "stop all" || h.name == "kill all" {
		stop()
	}
	<-ended
	if err := e.Cleanup(context.WithoutCancel(ctx)); err != nil {
		return 0, fmt.Errorf("%s: clean up: %w", h.name, err)
	}
	began := time.Now()
	gone := isSoon(10*time.Second, func() bool {
		return len(processesNamed(mark)) == 0 && !exists(filepath.Dir(s.socket(id)))
	})
	if !gone {
		return time.Since(began), fmt.Errorf("%s left processes %v, or its directory", h.name, processesNamed(mark))
	}
	if left := e.Left(); len(left) > 0 {
		return time.Since(began), fmt.Errorf("%s: left: %v", h.name, left)
	}
	return time.Since(began), nil
}

// signalled is a log that closes done once on is in it.
type signalled struct {
	sshtest.Log
	on   string
	once sync.Once
	done chan struct{}
}

func (s *signalled) Write(p []byte) (int, error) {
	n, err := s.Log.Write(p)
	if strings.Contains(s.String(), s.on) {
		s.once.Do(func() { close(s.done) })
	}
	return n, err
}
