package connector

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/wire"
)

// unusableError says that a runner command does not do on a VM, which another program there may put right.
type unusableError struct {
	err      error    // for the build, if nothing is done about it
	what     string   // is wrong with it, in a few words
	platform string   // of the VM; empty if it was not asked
	others   []string // of otherRunners that are on the VM
	program  *Program // not nil if it is good for something
}

func (e *unusableError) Error() string { return e.err.Error() }
func (e *unusableError) Unwrap() error { return e.err }

// unusable looks at a runner that did not start and completes the error that says so. What is a fault of
// a program that is right for the VM it returns as it is. hinted is the error to give instead where only a
// relay will do; it may be nil.
func (f *finder) unusable(ctx context.Context, runner []string, failed *ServeError, hinted error) error {
	bad := &unusableError{err: failed, what: "is not on the VM"}
	out, _, err := f.run(ctx, inspectArgv(runner[0]))
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case isLost(err):
		return err
	}
	seen := parseInspection(out) // what it does not have is not known
	bad.platform, bad.others = seen.platform, seen.others
	name := strings.Join(runner, " ")
	failed.Hint = missingHint(runner)
	switch {
	case seen.program == "":
	case seen.built != "" && seen.platform != "" && seen.built != seen.platform:
		bad.what = "is built for " + seen.built
		failed.Hint = fmt.Sprintf("%q is built for %s, the VM is %s: install the one for that%s", name, seen.built, seen.platform, orBootstrap)
	case failed.ExitCode == 126:
		bad.what = "cannot be executed"
		failed.Hint = fmt.Sprintf("%q is there and cannot be executed: look at its mode, its directories' and the options of its file system%s", name, orBootstrap)
	case failed.ExitCode == 127:
		bad.what = "cannot be started"
		failed.Hint = fmt.Sprintf("%q is there, but not the interpreter or the libraries it needs%s", name, orBootstrap)
	default:
		failed.Hint = "is the runner command a step runner?"
		return failed
	}
	if f.cfg.Route == Relay && hinted != nil {
		bad.err = hinted
	}
	return bad
}

// inspection is what a look at a VM found.
type inspection struct {
	platform string   // os/arch as Go names them where Go has a name; empty if it was not told
	program  string   // the runner's path; empty if it is not there
	built    string   // the platform its file is for; empty if it is no ELF file
	others   []string // of otherRunners
}

// parseInspection reads what inspectScript printed, among a login shell's text.
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
			if seen.platform = platformOf(system, machine); !wire.ValidPlatform(seen.platform) {
				seen.platform = "" // it goes into errors, and nothing is built for it
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

// machines are uname's names of what Go calls otherwise.
var machines = map[string]string{
	"x86_64": "amd64", "aarch64": "arm64", "i386": "386", "i486": "386", "i586": "386", "i686": "386",
	"armv5l": "arm", "armv6l": "arm", "armv7l": "arm", "armv8l": "arm", "loongarch64": "loong64",
}

// platformOf returns os/arch for what uname -s and -m say.
func platformOf(system, machine string) string {
	if arch, ok := machines[machine]; ok {
		machine = arch
	}
	return strings.ToLower(system) + "/" + machine
}

var elfMachines = map[elf.Machine]string{
	elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_386: "386", elf.EM_ARM: "arm", elf.EM_RISCV: "riscv64",
	elf.EM_S390: "s390x", elf.EM_LOONGARCH: "loong64",
}

// elfPlatform returns the platform for which a file is that begins with these bytes, in hexadecimal: those
// of an ELF header up to its e_machine. It is empty for any other file, and for a rare machine.
func elfPlatform(head string) string {
	b, err := hex.DecodeString(head)
	if err != nil || len(b) < 20 || string(b[:4]) != elf.ELFMAG {
		return ""
	}
	var order binary.ByteOrder = binary.LittleEndian
	if elf.Data(b[elf.EI_DATA]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	machine := elf.Machine(order.Uint16(b[18:]))
	if machine == elf.EM_PPC64 {
		if order == binary.LittleEndian {
			return "linux/ppc64le"
		}
		return "linux/ppc64"
	}
	if arch, ok := elfMachines[machine]; ok {
		return "linux/" + arch
	}
	return ""
}
