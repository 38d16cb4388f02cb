package program

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
)

// unusable inspects the VM after a runner did not start, and returns an error with the reason. If the VM is not at
// fault, that is not an *unusableError. hinted, which may be nil, is the error to return if only a relay is accepted.
func (f *finder) unusable(ctx context.Context, runner []string, failed *ServeError, hinted error) error {
	bad := &unusableError{err: failed, problem: "is not on the VM"}
	out, _, err := f.run(ctx, runner, inspectArgv(shown(runner)[0]))
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case mux.IsLost(err), errors.Is(err, ErrNotRun):
		return err
	}
	seen := parseInspection(out) // facts that are missing stay unknown
	bad.platform, bad.others = seen.platform, seen.others
	name := strings.Join(shown(runner), " ")
	failed.Hint = MissingHint(runner)
	switch {
	case seen.program == "":
	case seen.built != "" && seen.platform != "" && seen.built != seen.platform:
		bad.problem = "is built for " + seen.built
		failed.Hint = fmt.Sprintf("%q is built for %s, the VM is %s: install the one for that%s",
			name, seen.built, seen.platform, orBootstrap)
	case failed.ExitCode == 126:
		bad.problem = "cannot be executed"
		failed.Hint = fmt.Sprintf("%q is there and cannot be executed: look at its mode, its directories' and the "+
			"options of its file system%s", name, orBootstrap)
	case failed.ExitCode == 127:
		bad.problem = "cannot be started"
		failed.Hint = fmt.Sprintf("%q is there, but not the interpreter or the libraries it needs%s", name, orBootstrap)
	default:
		failed.Hint = Advice(failed.Stderr, "is the runner command a step runner?")
		return failed
	}
	if f.Relay == OnlyRelay && hinted != nil {
		bad.err = hinted
	}
	return bad
}

// inspection is the result of inspectScript.
type inspection struct {
	platform string   // os/arch, in Go's names if Go has them; empty if unknown
	program  string   // the runner's path; empty if the program is missing
	built    string   // the platform of its file; empty if it is not an ELF file
	others   []string // those of otherRunners that are installed
}

// parseInspection reads the lines of inspectScript among the text of a login shell.
func parseInspection(out []byte) inspection {
	var seen inspection
	for line := range bytes.Lines(out) {
		_, text, ok := strings.Cut(strings.TrimRight(string(line), "\r\n"), inspectPrefix)
		if !ok {
			continue
		}
		key, value, _ := strings.Cut(text, " ")
		switch key {
		case "platform":
			system, machine, _ := strings.Cut(value, " ")
			seen.platform = strings.ToLower(system) + "/" + cmp.Or(machines[machine], machine)
			if !wire.ValidPlatform(seen.platform) {
				seen.platform = "" // it is quoted in errors, and no program is built for such a platform
			}
		case "program":
			seen.program = value
		case "head":
			seen.built = elfPlatform(value)
		case "other":
			if slices.Contains(otherRunners, value) {
				seen.others = append(seen.others, value)
			}
		}
	}
	return seen
}

// machines maps uname's names to Go's where they differ.
var machines = map[string]string{
	"x86_64": "amd64", "aarch64": "arm64", "i386": "386", "i486": "386", "i586": "386", "i686": "386",
	"armv5l": "arm", "armv6l": "arm", "armv7l": "arm", "armv8l": "arm", "loongarch64": "loong64",
}

var elfMachines = map[elf.Machine]string{
	elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_386: "386", elf.EM_ARM: "arm", elf.EM_RISCV: "riscv64",
	elf.EM_S390: "s390x", elf.EM_LOONGARCH: "loong64", elf.EM_PPC64: "ppc64",
}

// elfPlatform returns the platform of an ELF file from its first bytes, up to e_machine, in hexadecimal. It returns
// "" for other files and for rare machines.
func elfPlatform(head string) string {
	b, err := hex.DecodeString(head)
	if err != nil || len(b) < 20 || string(b[:4]) != elf.ELFMAG {
		return ""
	}
	var order binary.ByteOrder = binary.LittleEndian
	if elf.Data(b[elf.EI_DATA]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	switch arch := elfMachines[elf.Machine(order.Uint16(b[18:]))]; {
	case arch == "":
		return ""
	case arch == "ppc64" && order == binary.LittleEndian:
		return "linux/ppc64le"
	default:
		return "linux/" + arch
	}
}
