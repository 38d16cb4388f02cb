package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/doctor"
	"github.com/stepmux/stepmux/internal/buildinfo"
	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

type doctorFlags struct {
	vmFlags
	clusterFlags
	bootstrapFlags
	output string
	docker string
}

func newDoctorCommand() *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor --instance ssh://[USER@]HOST[:PORT]",
		Short: "Examine VMs: whether builds can run there, and the changes that would help",
		Long: `Examine VMs: the login, the host key, the server's version, the sessions that it allows, its forwarding, the
login shell, the stepmux there, the directory for temporary files, the clock, git and bash, and the builds'
isolation. Doctor starts a step runner as for a build, and ends it. Each finding is ok, warn, fail or skip (not
checked), with the change to make and its benefit. With --bootstrap it copies stepmux to VMs as run does, and examines
that.
Doctor connects as run does: through the same jump hosts, with the same keys and host-key policies.

` + vmHelp + `

Exit codes:
  0        builds can run on all the VMs
  1        builds would fail on one of them
  2        wrong usage
  129 130 143  ended by a signal: hang-up, Ctrl-C (SIGINT), SIGTERM`,
		Example: `  stepmux doctor --instance ssh://ci@vm-1
  stepmux doctor --instance ssh://ci@vm-1 --bootstrap
  stepmux doctor --instance ssh://ci@vm-1 --docker unix:///var/run/docker.sock
  stepmux doctor --docker unix:///var/run/docker.sock
  stepmux doctor --kubernetes --namespace ci
  stepmux doctor --inventory fleet.yml --output json`,
		Args: arguments(),
		RunE: f.run,
	}
	f.vmFlags.register(cmd.Flags())
	f.bootstrapFlags.register(cmd.Flags())
	f.clusterFlags.register(cmd.Flags(), "examine a cluster for builds in pods instead of VMs: its version, and the "+
		"rights of the login; that of the kubeconfig's current context, or of the context `[=CONTEXT]`")
	cmd.Flags().StringVar(&f.docker, "docker", "", "examine for builds in containers (run --image) by the Docker daemon "+
		"at `ADDRESS`, unix://PATH or tcp://HOST:PORT: the VM's, and the login there, or without a VM this machine's")
	grouped(cmd.Flags(), containerGroup)
	f.registerConnectWait(cmd.Flags())
	f.registerOptions(cmd.Flags())
	outputFlag(cmd.Flags(), &f.output, "text, or json for an object per VM")
	return cmd
}

func (f *doctorFlags) run(cmd *cobra.Command, _ []string) error {
	if err := f.checkCluster(); err != nil {
		return err
	}
	bootstrap, err := f.bootstraps()
	switch {
	case err != nil:
		return err
	case len(bootstrap) > 0 && (f.docker != "" || f.onCluster()):
		return errors.New("--bootstrap is for builds on VMs: containers and pods need no stepmux there")
	}
	noVM := len(f.instances) == 0 && f.inventory == ""
	if noVM && f.docker == "" && !f.onCluster() {
		return errors.New("the VM is missing; name it with --instance or --inventory")
	}
	if noVM {
		err := f.needsVM(append(vmconfig.Names(f.vmOptions.Flags()), "runner-command")...)
		if err != nil {
			return err
		}
	}
	if f.onCluster() {
		return f.examineCluster(cmd)
	}
	var daemon *docker.Address
	if f.docker != "" {
		at, err := daemonAddress("--docker", f.docker)
		if err != nil {
			return err
		}
		daemon = &at
	}
	ctx, stop := endsignal.Until(cmd.Context())
	defer stop()
	if noVM {
		name := strconv.Itoa(os.Getuid())
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
		return showReports(ctx, cmd, f.output, doctor.ExamineDaemon(ctx, *daemon, name))
	}
	var telling sync.Mutex
	tell := func(text string) {
		telling.Lock()
		defer telling.Unlock()
		fmt.Fprintln(cmd.ErrOrStderr(), termtext.Line(text))
	}
	examine := func(p *instance.Provider, in instance.Instance, pause func(func())) doctor.Report {
		return doctor.Examine(ctx, p, in, doctor.Config{
			Version: buildinfo.Version(), Docker: daemon, Bootstrap: bootstrap, Again: f.again(in.ID, tell, pause),
			Silent: func() { tell("stepmux: " + in.ID + ": no answer from " + in.Addr + "; waiting for at most a minute") },
		})
	}
	reports, err := onEach(ctx, &f.vmFlags, examine)
	if err != nil {
		return err
	}
	return showReports(ctx, cmd, f.output, reports...)
}

// connectPause is the time between two attempts to connect to a VM that refuses.
const connectPause = time.Second

// again returns the Again of the VM id: it tells the first refusal, and waits for --connect-wait in all.
func (f *doctorFlags) again(id string, tell func(string), pauses func(func())) func(context.Context, error) bool {
	var until time.Time
	return func(ctx context.Context, refusal error) bool {
		if until.IsZero() && f.connectWait > 0 {
			until = time.Now().Add(f.connectWait)
			tell(fmt.Sprintf("stepmux: %s: %v; trying again for %v (--connect-wait)", id, refusal, f.connectWait))
		}
		if !time.Now().Before(until) {
			return false
		}
		pauses(func() { _ = pause.For(ctx, connectPause) })
		return ctx.Err() == nil
	}
}

// examineCluster examines the cluster.
func (f *doctorFlags) examineCluster(cmd *cobra.Command) error {
	if len(f.instances) > 0 || f.inventory != "" || f.docker != "" {
		return errors.New("use either --kubernetes, or --instance, --inventory and --docker")
	}
	cluster, err := f.load(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer cluster.Close()
	ctx, stop := endsignal.Until(cmd.Context())
	defer stop()
	return showReports(ctx, cmd, f.output, doctor.ExamineCluster(ctx, cluster))
}

// showReports shows reports as --output says, and returns the exit code as an error.
func showReports(ctx context.Context, cmd *cobra.Command, output string, reports ...doctor.Report) (err error) {
	code := 0
	for _, r := range reports {
		if !r.Usable {
			code = 1
		}
		if output == "json" {
			err = writeJSON(cmd.OutOrStdout(), r)
		} else {
			err = r.WriteText(cmd.OutOrStdout())
		}
		if err != nil {
			return systemError(err)
		}
	}
	return withCode(cmp.Or(endsignal.Code(ctx), code), nil)
}
