package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/semaphore"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/doctor"
)

// maxExamined bounds the VMs examined at once.
const maxExamined = 8

type doctorFlags struct {
	vmFlags
	output string
}

func newDoctorCommand() *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor --instance ssh://[USER@]HOST[:PORT]",
		Short: "Examine VMs: can builds run there, and how could they run better",
		Long: `Examine VMs: the login, the host key, the server's version, the sessions it allows, its forwarding, the login
shell, the stepmux there, the directory for temporary files, the clock. It starts a step runner as for a build, and
ends it. Each finding is ok, warn or fail, with a remedy and its gain. Doctor connects as run does: through the same
jump hosts, with the same keys and host key policies.

` + vmHelp + `

Exit codes:
  0        builds can run on all the VMs
  1        builds would fail on one of them
  2        wrong usage
  130      interrupted (Ctrl-C)`,
		Example: `  stepmux doctor --instance ssh://ci@vm-1
  stepmux doctor --inventory fleet.yml --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.register(cmd.Flags())
	cmd.Flags().StringVar(&f.output, "output", "text", "text, or json for an object per VM")
	return cmd
}

func (f *doctorFlags) run(cmd *cobra.Command) error {
	if err := checkOutput(f.output); err != nil {
		return usageError(err)
	}
	if len(f.instances) == 0 && f.inventory == "" {
		return usageError(errors.New("the VM is missing; name it with --instance or --inventory"))
	}
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	group, closeVMs, err := f.group(ctx, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer closeVMs()
	provider, err := instance.NewProvider(instance.Config{Group: group})
	if err != nil {
		return systemError(err)
	}
	defer func() { _ = provider.Close() }() // nil
	usable := true
	for _, r := range examine(ctx, provider, group.Instances()) {
		usable = usable && r.Usable
		if f.output == "json" {
			writeJSON(cmd.OutOrStdout(), r)
		} else if err := r.WriteText(cmd.OutOrStdout()); err != nil {
			return systemError(err)
		}
	}
	switch code := signalCode(ctx); {
	case code != 0:
		return &exitError{code: code}
	case !usable:
		return &exitError{code: 1}
	}
	return nil
}

// examine examines all VMs, some at once, and returns the reports in order.
func examine(ctx context.Context, p *instance.Provider, all []instance.Instance) []doctor.Report {
	reports := make([]doctor.Report, len(all))
	turns := semaphore.NewWeighted(maxExamined)
	var wg sync.WaitGroup
	for i, in := range all {
		wg.Go(func() {
			if turns.Acquire(ctx, 1) == nil {
				defer turns.Release(1)
			}
			reports[i] = doctor.Examine(ctx, p, in, doctor.Config{Version: version()})
		})
	}
	wg.Wait()
	return reports
}
