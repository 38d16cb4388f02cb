package main

import (
	"context"
	"fmt"
	"log/slog"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/elastic/groupfile"
	"github.com/stepmux/stepmux/instance/elastic/source"
	"github.com/stepmux/stepmux/instance/inventory"
	"github.com/stepmux/stepmux/instance/manager"
	"github.com/stepmux/stepmux/instance/manager/scaler"
)

// vmGroups returns the groups of VMs that come and go.
func (f *managerFlags) vmGroups(ctx context.Context, log *slog.Logger) (all []manager.VMGroup, err error) {
	for i := range f.elastic {
		g, err := f.vmGroup(ctx, &f.elastic[i], log)
		if err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	return all, nil
}

func (f *managerFlags) vmGroup(
	ctx context.Context, of *groupfile.Group, log *slog.Logger,
) (g manager.VMGroup, err error) {
	fallback := f.fallback()
	fallback.Capacity = max(of.Policy.Capacity, 1)
	of.Exec.Logger = log
	program, err := source.NewExec(of.Exec)
	if err != nil {
		return g, fmt.Errorf("elastic %s: %w", of.Exec.Group, err)
	}
	g.Config = scaler.Config{
		Name: of.Exec.Group, Policy: of.Policy, Source: program, UserData: of.UserData, Period: of.Period,
		ReadyTimeout: of.ReadyTimeout, Logger: log,
	}
	if err := g.Check(); err != nil {
		return g, fmt.Errorf("elastic %s: %w", of.Exec.Group, err)
	}
	if g.Labels, err = of.Defaults.Labels(ctx, fallback); err != nil {
		return g, err
	}
	g.Instances = func(ctx context.Context, vms []source.VM) ([]instance.Instance, error) {
		listed := make([]inventory.Listed, len(vms))
		for i, vm := range vms {
			listed[i] = inventory.Listed{
				ID: vm.ID, Host: vm.Address, Port: vm.Port, User: vm.User, KeyFile: vm.IdentityFile, Labels: vm.Labels,
				Capacity: vm.Capacity, MaxUses: of.Policy.MaxUses,
			}
			for _, text := range vm.HostKeys {
				key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(text))
				if err != nil {
					return nil, fmt.Errorf("the host key of %s: %w", vm.ID, err)
				}
				listed[i].HostKeys = append(listed[i].HostKeys, key)
			}
		}
		return of.Defaults.Instances(ctx, fallback, listed)
	}
	return g, nil
}
