package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/metrics"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

func TestFlagsOfConnectionsHoldForEachWayToNameAVM(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	inventory := filepath.Join(t.TempDir(), "fleet.yml")
	require.NoError(t, os.WriteFile(inventory, []byte("instances: [{id: vm-1, address: 127.0.0.1}]\n"), 0o600))
	for name, args := range map[string][]string{
		"instance":  {"--instance", "ssh://me@127.0.0.1:1", "--jump", "ssh://me@127.0.0.1:2"},
		"inventory": {"--inventory", inventory, "--jump", "ssh://me@127.0.0.1:2"},
		"embedded":  {},
	} {
		t.Run(name, func(t *testing.T) {
			var f vmFlags
			fl := pflag.NewFlagSet("test", pflag.ContinueOnError)
			f.register(fl)
			f.registerConnections(fl)
			if len(args) > 0 {
				args = append(args, "--identity", s.IdentityFile, "--known-hosts", s.KnownHosts, "--ssh-config", "none")
			}
			require.NoError(t, fl.Parse(append(args, "--keepalive-interval", "3s", "--keepalive-timeout", "4s",
				"--session-limit", "5", "--max-age", "6h", "--idle-timeout", "0", "--stop-timeout", "7s")))
			group, stop, err := f.group(t.Context(), slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			defer stop()
			in := group.Instances()[0]
			for vm := &in; vm != nil; vm = vm.Jump {
				require.Equal(t, 3*time.Second, vm.SSH.KeepaliveInterval)
				require.Equal(t, 4*time.Second, vm.SSH.KeepaliveTimeout)
				require.Equal(t, 5, vm.SSH.SessionLimit)
			}
			require.Equal(t, len(args) > 0, in.Jump != nil)
			cfg := f.providerConfig(group, nil, metrics.New(""), nil)
			require.Equal(t, []time.Duration{6 * time.Hour, -1, 7 * time.Second},
				[]time.Duration{cfg.MaxAge, cfg.IdleTimeout, cfg.StopTimeout})
		})
	}
}

// A flag that is in no group would stand below "Other flags".
func TestTheFlagsOfALongHelpAreInGroups(t *testing.T) {
	for todo := newRoot().Commands(); len(todo) > 0; {
		cmd := todo[0]
		todo = append(todo[1:], cmd.Commands()...)
		cmd.InitDefaultHelpFlag()
		for _, s := range sections(cmd) {
			if s.title == "Other flags" {
				s.flags.VisitAll(func(f *pflag.Flag) { require.Equal(t, "help", f.Name, cmd.Name()) })
			}
		}
	}
}

// The help said --kubernetes CONTEXT[="."], though a word after --kubernetes is taken for a FILE.
func TestTheHelpShowsThatTheContextOfKubernetesIsOptional(t *testing.T) {
	cmd, _, err := newRoot().Find([]string{"run"})
	require.NoError(t, err)
	help := ""
	for _, s := range sections(cmd) {
		help += s.flags.FlagUsages()
	}
	require.Regexp(t, `--kubernetes \[=CONTEXT\] {2,}run each build in a pod`, help)
	require.NotContains(t, help, `[="`)
	require.Equal(t, currentContext, cmd.Flags().Lookup("kubernetes").NoOptDefVal, "the flag itself stays as it is")
}
