package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/metrics"
	"github.com/stepmux/stepmux/internal/buildinfo"
)

// operateFlags are the flags for operators of a run.
type operateFlags struct {
	control string
	metrics string
}

func (f *operateFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.control, "control", "", "socket for ps, drain and undrain (default a new one in $XDG_RUNTIME_DIR or "+
		"a directory for temporary files)")
	fl.StringVar(&f.metrics, "metrics", "",
		"serve Prometheus metrics and /healthz on `[HOST]:PORT`; without HOST for this machine only (default off)")
	grouped(fl, outputGroup)
}

// operate serves metrics and the control socket until the returned function is called.
func (f *runFlags) operate(p *instance.Provider, cfg instance.Config, m *metrics.Metrics) (func(), error) {
	var servers []interface{ Close() }
	stop := func() {
		for _, s := range servers {
			s.Close()
		}
	}
	if f.metrics != "" {
		m.Watch(p)
		server, err := metrics.Serve(f.metrics, m)
		if err != nil {
			return nil, fmt.Errorf("--metrics: %w", err)
		}
		cfg.Logger.Info("metrics", "url", "http://"+server.Addr()+"/metrics")
		servers = append(servers, server)
	}
	server, err := control.Serve(control.Config{
		Path: f.control, Provider: p, Group: cfg.Group, Version: buildinfo.Version(), InventoryErr: f.inventoryErr,
	})
	switch {
	case err == nil:
		cfg.Logger.Info("control socket", "path", server.Path())
		servers = append(servers, server)
	case f.control != "":
		stop()
		return nil, fmt.Errorf("--control: %w", err)
	default:
		// Only a warning: the user has not asked for this socket.
		cfg.Logger.Warn("no control socket: ps, drain and undrain will not find this run", "error", err)
	}
	return stop, nil
}
