package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/doctor"
	"github.com/stepmux/stepmux/instance/manager/giteadoor"
	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/flagfile"
)

func newGiteaCommand() *cobra.Command {
	return withCommands(&cobra.Command{
		Use:   "gitea",
		Short: "Examine the Gitea servers of a manager",
	}, newGiteaCheckCommand())
}

type giteaCheckFlags struct {
	managerFlags // those that the file sets
	file         string
	output       string
}

func newGiteaCheckCommand() *cobra.Command {
	var f giteaCheckFlags
	cmd := &cobra.Command{
		Use:   "check --config FILE [SERVER...]",
		Short: "Check that a manager can take jobs from its Gitea servers",
		Long: `Check the Gitea servers of a manager's file, or those that are named: the URL, its certificate, the service
for runners, the version, the clock, the files with the token and the secret, and the labels. If the file has VMs,
check also that they reach the server. Each finding is ok, warn, fail or skip (not checked), with the change to make.

It needs no manager, registers no runner, and changes nothing on the server. For that reason the token is not tried:
only its file is read. The manager may run meanwhile.

Exit codes:
  0        the manager can take jobs from all the servers
  1        it cannot take those of one of them
  2        wrong usage, or a file that is not valid
  129 130 143  ended by a signal: hang-up, Ctrl-C (SIGINT), SIGTERM`,
		Example: `  stepmux gitea check --config /etc/stepmux/manager.yml
  stepmux gitea check --config /etc/stepmux/manager.yml gitea-example-com --output json`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              f.run,
	}
	cmd.Flags().StringVar(&f.file, "config", "", "YAML `FILE` of the manager")
	outputFlag(cmd.Flags(), &f.output, "text, or json for an object per server")
	return cmd
}

func (f *giteaCheckFlags) run(cmd *cobra.Command, names []string) error {
	if f.file == "" {
		return errors.New("--config is missing: the file of the manager, with the key gitea")
	}
	if err := flagfile.Apply(f.command().Flags(), f.file); err != nil {
		return err
	}
	servers, err := f.servers(names)
	if err != nil {
		return err
	}
	ctx, stop := endsignal.Until(cmd.Context())
	defer stop()
	reports := make([]doctor.Report, len(servers))
	var vms []map[string]string
	var reached [][]doctor.Finding // of each VM
	if f.inventory != "" || len(f.instances) > 0 {
		vms = []map[string]string{}
		group, closeVMs, err := f.vmFlags.group(ctx, f.logger(cmd.ErrOrStderr()))
		if err != nil {
			return err
		}
		for _, in := range group.Instances() {
			vms = append(vms, in.Labels)
		}
		closeVMs()
		reached, err = onEach(ctx, &f.vmFlags,
			func(p *instance.Provider, in instance.Instance, _ func(func())) (all []doctor.Finding) {
				for _, server := range servers {
					if server.Relayed {
						all = append(all, doctor.Finding{})
						continue
					}
					all = append(all, doctor.Reaches(ctx, p, in, server.URL))
				}
				return all
			})
		if err != nil {
			return err
		}
	}
	for i, server := range servers {
		reports[i] = doctor.ExamineGitea(ctx, server, vms)
		for _, vm := range reached {
			if vm[i].Check != "" {
				reports[i].Add(vm[i])
			}
		}
	}
	return showReports(ctx, cmd, f.output, reports...)
}

// servers returns the servers of the file with these names, or all.
func (f *giteaCheckFlags) servers(names []string) (giteadoor.Servers, error) {
	all := f.doors.gitea
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no key gitea: add one with the url and the token-file of a server", f.file)
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(c giteadoor.Config) bool { return c.Name == name }) {
			return nil, fmt.Errorf("%s has no server %.40q", f.file, name)
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(c giteadoor.Config) bool {
		return len(names) > 0 && !slices.Contains(names, c.Name)
	}), nil
}
