package main

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/metrics"
	"github.com/stepmux/stepmux/internal/buildinfo"
	"github.com/stepmux/stepmux/internal/endsignal"
)

// runVMs are the VMs of a run. The caller calls close.
type runVMs struct {
	provider *instance.Provider
	places   []string // see buildFlags.places
	counts   *metrics.Metrics
	logger   *slog.Logger
	ends     []func()
}

func (v *runVMs) close() {
	for _, end := range slices.Backward(v.ends) {
		end()
	}
}

// open connects to the VMs.
func (f *runFlags) open(ctx context.Context, given runInput, report *reporter) (_ *runVMs, err error) {
	v := &runVMs{logger: f.logger(report), counts: metrics.New(buildinfo.Version())}
	defer func() {
		if err != nil {
			v.close()
		}
	}()
	group, closeVMs, err := f.vmsOrCluster(ctx, &f.vmFlags, v.logger)
	if err != nil {
		return nil, cmp.Or(withCode(endsignal.Code(ctx), nil), err)
	}
	v.ends = append(v.ends, closeVMs)
	if v.places, err = f.places(group); err != nil {
		return nil, err
	}
	cfg := f.providerConfig(group, given.bootstrap, v.counts, v.logger)
	switch {
	case f.onCluster():
		err = f.addPrograms(&cfg, "--kubernetes")
	case given.inContainers:
		err = f.configure(&cfg, len(f.instances) == 0 && f.inventory == "")
	}
	if err != nil {
		return nil, err
	}
	if v.provider, err = instance.NewProvider(cfg); err != nil {
		return nil, err
	}
	v.ends = append(v.ends, func() { _ = v.provider.Close() }) // all builds have ended
	stop, err := f.operate(v.provider, cfg, v.counts)          //nolint:contextcheck // it waits some seconds for a lock
	if err != nil {
		return nil, err
	}
	v.ends = append(v.ends, stop)
	return v, nil
}
