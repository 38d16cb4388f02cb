package instance_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// narrowMachines are machines on which isolation cannot be had, made by namespaces around the VM's end.
var narrowMachines = []struct {
	name   string
	setUp  string
	reason string // in the error
}{
	{
		"user namespaces are closed", `echo 0 >/proc/sys/user/max_user_namespaces`,
		"(sysctl user.max_user_namespaces=10000)",
	},
	{"/proc is masked, as in a container", `mount -t tmpfs none /proc/bus`, "mount /proc: operation not permitted"},
	{"mount namespaces are closed", `echo 0 >/proc/sys/user/max_mnt_namespaces`, "start its init: "},
}

// on makes the VM's end run on such a machine, which has a network of its own. flags are more of unshare's.
func (s *site) on(t testing.TB, setUp string, flags ...string) {
	t.Helper()
	sshtest.RequirePart(t, "util-linux", "/usr/bin/setpriv")
	wrapper := filepath.Join(s.home, "narrow")
	flags = append(flags, "-Umn", "--map-current-user", "--keep-caps")
	text := "#!/bin/sh\nexec unshare " + strings.Join(flags, " ") + " sh -ec '" + setUp +
		"\nexec setpriv --inh-caps=-all --ambient-caps=-all " + s.runner[0] + ` "$@"' sh "$@"` + "\n"
	require.NoError(t, os.WriteFile(wrapper, []byte(text), 0o700))
	s.runner = []string{wrapper}
	s.p = s.provider(t, 8, nil)
}

func TestALevelThatCannotBeHadIsAnErrorAndAutoGoesOnWithout(t *testing.T) {
	t.Parallel()
	for _, m := range narrowMachines {
		for _, level := range []vmconfig.Level{vmconfig.Processes, vmconfig.Private, vmconfig.Auto} {
			t.Run(m.name+", "+level.String(), func(t *testing.T) {
				t.Parallel()
				s := newSite(t, level, connector.Relay)
				s.on(t, m.setUp)
				out, err := s.run(t, "b1", "echo ran; ! "+needsIsolation, nil)
				if level == vmconfig.Auto {
					require.NoError(t, err, "%s", out)
					require.Equal(t, "ran\n", out)
				} else {
					require.NotContains(t, out, "ran")
					require.ErrorContains(t, err, "isolation "+level.String()+" is not available: ")
					require.ErrorContains(t, err, m.reason)
					failed := (*instance.BuildError)(nil)
					require.ErrorAs(t, err, &failed)
					require.Equal(t, instance.RunnerSystemFailure, failed.Reason)
				}
				require.NoError(t, s.p.Close())
				s.requireClean(t)
			})
		}
	}
}

// A /proc with hidepid=2 shows a user its own processes alone.
func TestIsolationWorksWhereProcHidesProcesses(t *testing.T) {
	t.Parallel()
	s := newSite(t, vmconfig.Processes, connector.Relay)
	s.on(t, "mount -t proc -o hidepid=2 proc /proc", "-pf", "--kill-child")
	out, err := s.run(t, "b1", needsIsolation+" && $TOOL daemon left", map[string]string{"TOOL": s.tool(t)})
	require.NoError(t, err, "%s", out)
	require.NoError(t, s.p.Close())
	s.requireClean(t)
}

// The user's manager of services, reached by a socket in /run/user/UID, starts processes outside the isolation. So does
// a session of screen, reached by one in /run/screen. Arch and openSUSE have other names for that directory.
func TestTheUsersManagerOfServicesIsHidden(t *testing.T) {
	t.Parallel()
	for level, text := range map[vmconfig.Level]string{
		vmconfig.Processes: needsIsolation + ` && d=/run/user/$(id -u) && [ -d $d ] &&
			[ -z "$(ls -A $d /run/screen /run/screens /run/uscreens | grep -v :)" ]`,
		vmconfig.Off: `[ -s /run/user/$(id -u)/bus ] && [ "$(cat /run/*screen*/socket | grep -c text)" = 3 ]`,
	} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, level, connector.Relay)
			s.on(t, `mount -t tmpfs none /run; d=/run/user/$(id -u); mkdir -p $d; echo text >$d/bus
				for d in screen screens uscreens; do mkdir /run/$d; echo text >/run/$d/socket; done`)
			out, err := s.run(t, "b1", text, nil)
			require.NoError(t, err, "%s", out)
		})
	}
}

// Symptom: the first session of the user that began during a build brought its directory into the build.
func TestASessionThatBeginsLaterBringsNoSocketsIntoABuild(t *testing.T) {
	t.Parallel()
	s := newSite(t, vmconfig.Processes, connector.Relay)
	s.on(t, `mount --make-rshared /; mount -t tmpfs none /run; mkdir /run/user
		(for i in $(seq 300); do
			[ -e ~/built ] && mkdir /run/user/$(id -u) && mount -t tmpfs none /run/user/$(id -u) &&
				echo text >/run/user/$(id -u)/bus && echo >~/come && exit
			sleep 0.1
		done) >/dev/null 2>&1 </dev/null &`)
	out, err := s.run(t, "b1", needsIsolation+` && echo >~/built && until [ -e ~/come ]; do sleep 0.1; done &&
		d=/run/user/$(id -u) && [ -d $d ] && [ -z "$(ls -A $d)" ]`, nil)
	require.NoError(t, err, "%s", out)
}

// While one build has all processes that the user may have, another one fails, for a reason that says so.
func TestABuildThatFindsTheLimitOfProcessesFullSaysSo(t *testing.T) {
	t.Parallel()
	s := newSite(t, vmconfig.Processes, connector.Relay)
	s.on(t, "prlimit --pid $$ --nproc=150:150")
	full := &sshtest.Log{}
	job := script(needsIsolation + " && $TOOL fill 200")
	job.Env = map[string]string{"TOOL": s.tool(t)}
	ctx, cancel := context.WithCancel(sshtest.Within(t))
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- build(ctx, s.p, "b1", job, full) }()
	full.Await(t, "full\n")
	out, err := s.run(t, "b2", "echo has run; "+needsIsolation, nil)
	require.NotContains(t, out, "has run")
	require.Error(t, err)
	require.Regexp(t, `resource temporarily unavailable|max user processes \(ulimit -u\)`, err.Error())
	failed := (*instance.BuildError)(nil)
	require.ErrorAs(t, err, &failed)
	require.Equal(t, instance.RunnerSystemFailure, failed.Reason)
	cancel()
	<-ended
	out, err = s.run(t, "b3", needsIsolation, nil)
	require.NoError(t, err, "%s", out)
	require.NoError(t, s.p.Close())
	s.requireClean(t)
}

// File capabilities and setuid have no effect with isolation, so ping needs the sockets that a machine gives to groups.
func TestPingWorksWithIsolationWhereItsGroupMay(t *testing.T) {
	t.Parallel()
	sshtest.RequirePart(t, "iputils-ping", "/bin/ping")
	open := fmt.Sprintf(`echo "%d %[1]d" >/proc/sys/net/ipv4/ping_group_range`, os.Getegid())
	for _, m := range []struct{ name, setUp, text string }{
		{"open", open, "ping -c 1 -W 10 127.0.0.1"},
		{"closed", "true", "! ping -c 1 -W 10 127.0.0.1 2>&1"},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, vmconfig.Processes, connector.Relay)
			s.on(t, "PATH=$PATH:/usr/sbin:/sbin ip link set lo up; "+m.setUp)
			out, err := s.run(t, "b1", needsIsolation+" && "+m.text, nil)
			require.NoError(t, err, "%s", out)
		})
	}
}

// Symptom: a job exchanged a directory of login files and a link, again and again. Builds that began meanwhile had the
// job's directory mounted where the link leads, which could be /usr/bin.
func TestALinkInThePlaceOfALoginFileLeadsNoMountElsewhere(t *testing.T) {
	t.Parallel()
	s := newSite(t, vmconfig.Processes, connector.Relay)
	out := &sshtest.Log{}
	job := script(`mkdir -p ~/.config/autostart; echo text >~/.config/autostart/loot; ln -s /mnt ~/.config/autostart.other
		echo begun; exec $TOOL exchange ~/.config/autostart`)
	job.Env = map[string]string{"TOOL": s.tool(t)}
	ctx, cancel := context.WithCancel(sshtest.Within(t))
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- build(ctx, s.p, "b", job, out) }()
	out.Await(t, "begun\n")
	builds := 100 // without the mend, about one in 50 shows it
	if testing.Short() {
		builds = 20
	}
	for i := range builds {
		out, _ := s.run(t, fmt.Sprint("b", i), "ls /mnt", nil) // it may fail: its login files change all the time
		require.NotContains(t, out, "loot")
	}
	cancel()
	requireReason(t, <-ended, instance.JobCanceled, 0)
}
