package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/doctor"
	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/flagfile"
)

// newServerCommands returns the commands about servers whose jobs a manager takes.
func newServerCommands() []*cobra.Command {
	return []*cobra.Command{withCommands(&cobra.Command{
		Use:   "gitea",
		Short: "Examine the Gitea servers of a manager",
	}, newServerCheckCommand("gitea", "Gitea",
		`Check the Gitea servers of a manager's file, or those that are named: the URL, its certificate, the service
for runners, the version, the clock, the files with the token and the secret, and the labels. If the file has VMs,
check also that they reach the server. Each finding is ok, warn, fail or skip (not checked), with the change to make.

It needs no manager, registers no runner, and changes nothing on the server. For that reason the token is not tried:
only its file is read. The manager may run meanwhile.`)), withCommands(&cobra.Command{
		Use:   "gitlab",
		Short: "Examine the GitLab servers of a manager, and move to it from GitLab Runner",
	}, newServerCheckCommand("gitlab", "GitLab",
		`Check the GitLab servers of a manager's file, or those that are named: the URL, its certificate, the file with
the token, and whether the server knows it. If the file has VMs, check also that they reach the server. Each finding
is ok, warn, fail or skip (not checked), with the change to make.

It needs no manager, and takes no job. The manager may run meanwhile. The server lists the check as a manager of the
runner, with the system ID s_stepmuxcheck. Its tags, its limits, and whether it waits for acknowledgements, are not
told to runners.`), newGitLabImportCommand())}
}

type serverCheckFlags struct {
	managerFlags // those that the file sets
	kind         string
	file         string
	output       string
}

func newServerCheckCommand(kind, product, long string) *cobra.Command {
	f := serverCheckFlags{kind: kind}
	cmd := &cobra.Command{
		Use:   "check --config FILE [SERVER...]",
		Short: "Check that a manager can take jobs from its " + product + " servers",
		Long: long + `

Exit codes:
  0        the manager can take jobs from all the servers
  1        it cannot take those of one of them
  2        wrong usage, or a file that is not valid
  129 130 143  ended by a signal: hang-up, Ctrl-C (SIGINT), SIGTERM`,
		Example: "  stepmux " + kind + " check --config /etc/stepmux/manager.yml\n" +
			"  stepmux " + kind + " check --config /etc/stepmux/manager.yml " + kind + "-example-com --output json",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              f.run,
	}
	cmd.Flags().StringVar(&f.file, "config", "", "YAML `FILE` of the manager")
	outputFlag(cmd.Flags(), &f.output, "text, or json for an object per server")
	return cmd
}

func (f *serverCheckFlags) run(cmd *cobra.Command, names []string) error {
	if f.file == "" {
		return errors.New("--config is missing: the file of the manager, with the key " + f.kind)
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
					if server.relayed {
						all = append(all, doctor.Finding{})
						continue
					}
					all = append(all, doctor.Reaches(ctx, p, in, server.url))
				}
				return all
			})
		if err != nil {
			return err
		}
	}
	for i, server := range servers {
		reports[i] = server.examine(ctx, vms)
		for _, vm := range reached {
			if vm[i].Check != "" {
				reports[i].Add(vm[i])
			}
		}
	}
	return showReports(ctx, cmd, f.output, reports...)
}

// checkedServer is a server of the file.
type checkedServer struct {
	name, url string
	relayed   bool // VMs need not reach it
	examine   func(ctx context.Context, vms []map[string]string) doctor.Report
}

// servers returns the servers of the file with these names, or all.
func (f *serverCheckFlags) servers(names []string) ([]checkedServer, error) {
	var all []checkedServer
	if f.kind == "gitea" {
		for _, c := range f.doors.gitea.Servers {
			all = append(all, checkedServer{
				c.Name, c.URL, c.Relayed,
				func(ctx context.Context, vms []map[string]string) doctor.Report {
					return doctor.ExamineGitea(ctx, c, vms)
				},
			})
		}
	} else {
		for _, c := range f.doors.gitlab.Servers {
			all = append(all, checkedServer{
				c.Name, c.URL, false,
				func(ctx context.Context, _ []map[string]string) doctor.Report { return doctor.ExamineGitLab(ctx, c) },
			})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no key %s: add one with the url and the token-file of a server", f.file, f.kind)
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(c checkedServer) bool { return c.name == name }) {
			return nil, fmt.Errorf("%s has no server %.40q", f.file, name)
		}
	}
	return slices.DeleteFunc(all, func(c checkedServer) bool {
		return len(names) > 0 && !slices.Contains(names, c.name)
	}), nil
}
