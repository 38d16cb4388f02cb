package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/inventory"
	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/sshtarget"
	"github.com/stepmux/stepmux/mux"
)

// endSignals returns the signals that end a run. With an inventory SIGHUP does not: it rereads the inventory.
func (f *vmFlags) endSignals() []os.Signal {
	if f.inventory != "" {
		return []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	}
	return endsignal.All
}

// fromInventory returns the VMs of the inventory. The group follows the file until the returned function is called.
// ctx bounds the commands that the first reading of the file runs.
func (f *vmFlags) fromInventory(ctx context.Context, log *slog.Logger) (*instance.Group, func(), error) {
	if len(f.instances) > 0 {
		return nil, nil, errors.New("--inventory and --instance: use one of them")
	}
	// Register before the file is read, so that an early SIGHUP does not end the program.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	following, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	stop := func() {
		signal.Stop(hangups)
		cancel()
		wg.Wait()
	}
	file, err := inventory.Open(ctx, inventory.Config{Path: f.inventory, Logger: log, Fallback: f.fallback()})
	var group *instance.Group
	if err == nil {
		group, err = instance.NewGroup(file.Instances()...)
	}
	if err != nil {
		stop()
		return nil, nil, fmt.Errorf("--inventory: %w", err)
	}
	f.inventoryErr = file.Err
	wg.Go(func() { _ = group.Follow(following, file.Watch) }) // returns when ctx ends: a File logs its errors
	wg.Go(func() {
		for {
			select {
			case <-hangups:
				file.Reload()
			case <-following.Done():
				return
			}
		}
	})
	return group, stop, nil
}

// fallback returns the values of the flags for VMs of an inventory.
func (f *vmFlags) fallback() inventory.Fallback {
	return inventory.Fallback{
		Capacity: f.capacity,
		Runner:   f.runner,
		Options:  f.vmOptions,
		Resolver: func() (inventory.Resolver, error) {
			r, err := sshtarget.NewResolver(f.way)
			return reach{r}, err
		},
	}
}

// reach gives an inventory the resolver of --instance.
type reach struct{ *sshtarget.Resolver }

// Resolve implements inventory.Resolver.
func (r reach) Resolve(ctx context.Context, h inventory.Host) (string, mux.Config, *instance.Instance, error) {
	t, err := r.Target(ctx, sshtarget.Host(h))
	if err != nil {
		return "", mux.Config{}, nil, err
	}
	return t.Addr, t.SSH, instanceOf(t.Jump), nil
}
