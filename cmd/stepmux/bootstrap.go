package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/wire"
)

// ownFile opens the file of this program, even if its path now names another file.
const ownFile = "/proc/self/exe"

// bootstrapFlags name the programs that may be copied to VMs.
type bootstrapFlags struct {
	bootstrap bool
	binaries  []string
}

func (f *bootstrapFlags) register(fl *pflag.FlagSet) {
	fl.BoolVar(&f.bootstrap, "bootstrap", false, "copy stepmux to VMs whose stepmux is missing, cannot run, or "+
		"is too old for a relay: to ~/.cache/stepmux or a directory for temporary files; \"stepmux version\" lists the "+
		"platforms that this program carries it for")
	fl.StringArrayVar(&f.binaries, "bootstrap-binary", nil,
		"`OS/ARCH=FILE`, a stepmux to copy to VMs of that platform, as --bootstrap does; repeatable")
	grouped(fl, runnerGroup)
}

// bootstraps returns the programs that may be copied to VMs.
func (f *bootstrapFlags) bootstraps() ([]*program.Binary, error) {
	var all []*program.Binary
	for _, text := range f.binaries {
		platform, file, ok := strings.Cut(text, "=")
		if !ok || !wire.ValidPlatform(platform) || file == "" {
			return nil, fmt.Errorf("--bootstrap-binary %q: want OS/ARCH=FILE, as in linux/arm64=stepmux-arm64", text)
		}
		b, err := program.LoadBinary(file)
		if err != nil {
			return nil, fmt.Errorf("--bootstrap-binary: %w", err)
		}
		if b.Platform() != platform {
			return nil, fmt.Errorf("--bootstrap-binary %q: the file is for %s", text, b.Platform())
		}
		if missing := b.Missing(); missing != "" {
			return nil, fmt.Errorf("--bootstrap-binary %q: a stepmux-vm needs the stepmux-fetch that was built with it, and "+
				"there is no %s (make vm-end builds both)", text, missing)
		}
		all = append(all, b)
	}
	if !f.bootstrap {
		return all, nil
	}
	ends := carried()
	if len(ends) == 0 {
		own, err := program.LoadBinary(ownFile)
		if err != nil {
			return nil, fmt.Errorf("--bootstrap: %w", err)
		}
		ends = []*program.Binary{own}
	}
	return append(all, ends...), nil // after the programs that were named
}
