package main

import (
	"fmt"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/metrics"
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
		"serve Prometheus metrics and /healthz on [HOST]:PORT; without HOST for this machine only (default off)")
}

// hooks returns the metrics and adds their hooks to cfg. It returns nil without --metrics.
func (f *operateFlags) hooks(cfg *instance.Config) *metrics.Metrics {
	if f.metrics == "" {
		return nil
	}
	m := metrics.New()
	cfg.ConnTrace, cfg.DialDone, cfg.Retired = m.ConnTrace(), m.Dialed, m.Retired
	return m
}

// operate serves metrics and the control socket until the returned function is called.
func (f *operateFlags) operate(
	p *instance.Provider, group *instance.Group, m *metrics.Metrics, inventoryErr func() error, log *slog.Logger,
) (func(), error) {
	stop := func() {}
	if m != nil {
		m.Watch(p)
		server, err := metrics.Serve(f.metrics, m)
		if err != nil {
			return nil, usageError(fmt.Errorf("--metrics: %w", err))
		}
		log.Info("metrics", "url", "http://"+server.Addr()+"/metrics")
		stop = server.Close
	}
	server, err := control.Serve(control.Config{
		Path: f.control, Provider: p, Group: group, Version: version(),
		InventoryErr: inventoryErr,
	})
	switch {
	case err == nil:
		log.Info("control socket", "path", server.Path())
		withoutControl := stop
		return func() {
			server.Close()
			withoutControl()
		}, nil
	case f.control != "":
		stop()
		return nil, usageError(fmt.Errorf("--control: %w", err))
	default:
		// The socket is a default; nobody asked for it.
		log.Warn("no control socket: ps, drain and undrain will not find this run", "error", err)
		return stop, nil
	}
}
