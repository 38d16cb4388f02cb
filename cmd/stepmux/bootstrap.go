package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/wire"
)

// ownFile is the file this program was started from, though another may have taken its name.
const ownFile = "/proc/self/exe"

// bootstrapFlags say what may be put on VMs.
type bootstrapFlags struct {
	bootstrap bool
	binaries  []string
}

func (f *bootstrapFlags) register(fl *pflag.FlagSet) {
	fl.BoolVar(&f.bootstrap, "bootstrap", false, "put this program on VMs whose stepmux is missing, cannot be "+
		"executed, or is too old for a relay: in ~/.cache/stepmux or a directory for temporary files")
	fl.StringArrayVar(&f.binaries, "bootstrap-binary", nil,
		"OS/ARCH=FILE, a stepmux to put on VMs of that kind, as --bootstrap does; may repeat")
}

// bootstraps returns the programs that may be put on VMs.
func (f *bootstrapFlags) bootstraps() ([]*connector.Binary, error) {
	var all []*connector.Binary
	for _, text := range f.binaries {
		platform, file, ok := strings.Cut(text, "=")
		if !ok || !wire.ValidPlatform(platform) || file == "" {
			return nil, fmt.Errorf("--bootstrap-binary %q: want OS/ARCH=FILE, as in linux/arm64=stepmux-arm64", text)
		}
		b, err := connector.LoadBinary(file)
		if err != nil {
			return nil, fmt.Errorf("--bootstrap-binary: %w", err)
		}
		if b.Platform() != platform {
			return nil, fmt.Errorf("--bootstrap-binary %q: the file is for %s", text, b.Platform())
		}
		all = append(all, b)
	}
	if f.bootstrap {
		own, err := connector.LoadBinary(ownFile)
		if err != nil {
			return nil, fmt.Errorf("--bootstrap: %w", err)
		}
		all = append(all, own) // one that was named comes first
	}
	return all, nil
}
