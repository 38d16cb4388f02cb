package vmconfig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Options say how a VM runs builds. The zero value has the defaults.
type Options struct {
	// TempDir is the VM's directory for temporary files. The builds' socket directories are made below it. If empty,
	// /tmp.
	TempDir string
	// Isolation is how far a build is separated from the rest of the VM: auto, off, processes or private. If empty,
	// auto: the best level that the VM allows. With any other level, the build fails if the VM does not allow it.
	Isolation Level
	// BuildUser is the user that runs the build if the login is root: the name of a user of the VM, or a range of
	// user ids, FIRST-LAST. Each build gets an id that no other build has at the time. If empty, the login.
	BuildUser string
	// Limits bound the processes of the build. If the VM cannot enforce them, the build fails.
	Limits Limits
	// Linger lets the build outlive its connection: the step runner continues for this long, at most 24h, without a
	// manager. The VM needs a stepmux that supports this. If zero, the build ends with its connection.
	Linger time.Duration
}

// The flags that only some commands have.
const (
	TempDirFlag = "temp-dir"
	LingerFlag  = "linger"
)

const defaultTempDir = "/tmp"

// MaxLinger is the longest Linger. No job runs longer.
const MaxLinger = 24 * time.Hour

// Flag is one of the Options as text, for a flag set of package pflag and for the key of an inventory. It is a
// pflag.Value.
type Flag struct {
	Name, Usage string
	Values      []string // all possible values; nil if there are many
	InPods      bool     // also applies to builds in pods

	usual   string // the text of the default
	missing string // the hint for a program that does not know the flag
	get     func() string
	set     func(text string) error
}

// Key returns the key of an inventory for the flag.
func (f Flag) Key() string { return strings.ReplaceAll(f.Name, "-", "_") }

// Set sets the option.
func (f Flag) Set(text string) error { return f.set(text) }

// String returns the option as Set takes it. It is empty for an option that is not set and has no default.
func (f Flag) String() string { return f.get() }

// Type implements pflag.Value.
func (Flag) Type() string { return "func" }

// Flags returns the flags that set o, in a fixed order: those of all commands that run builds, and the ones that more
// names. To add an option, add a field and a row here.
func (o *Options) Flags(more ...string) []Flag {
	all := []Flag{
		{
			Name: TempDirFlag, Usage: "`DIR` of the builds' sockets and their other temporary files",
			usual: defaultTempDir, get: func() string { return cmp.Or(o.TempDir, defaultTempDir) },
			set: func(text string) error {
				if o.TempDir = text; !strings.HasPrefix(text, "/") {
					return fmt.Errorf("%q is not absolute; it is a directory of the VM", text)
				}
				return nil
			},
		},
		{
			Name: "isolation", Usage: "how far builds are isolated from the rest of their VM: auto (the default, the best " +
				"level that the VM allows), off, processes or private; if the VM does not allow the named level, the build " +
				"fails; the variable " + LevelVar + " on the VM replaces auto",
			Values: levels, usual: auto, get: func() string { return o.Isolation.String() },
			missing: "the step runner knows no isolation, so it cannot hold the build apart as asked (--isolation, isolation:)",
			set: func(text string) (err error) {
				o.Isolation, err = parseName(text)
				return err
			},
		},
		{
			Name: "build-user", Usage: "if the login is root: run builds as this `user` of the VM or, with a range of user " +
				"ids, FIRST-LAST, each build as another of them (default the login)",
			missing: "the step runner knows no build users (--build-user, build_user:)",
			get:     func() string { return o.BuildUser },
			set: func(text string) error {
				o.BuildUser = text
				_, _, _, err := ParseUser(text)
				return err
			},
		},
		{
			Name: LingerFlag, Usage: "`TIME` for which builds go on, at most 24h, while no manager is attached; needs " +
				"--secret-stdin and a build's socket; 0: builds end with their connection",
			InPods: true, usual: "0s", get: func() string { return o.Linger.String() },
			set: func(text string) (err error) {
				if o.Linger, err = time.ParseDuration(text); err != nil || o.Linger < 0 || o.Linger > MaxLinger {
					return fmt.Errorf("%q is not a time from 0 to %v, such as 2m or 90s", text, MaxLinger)
				}
				return nil
			},
		},
	}
	all = append(all, o.Limits.Flags()...)
	return slices.DeleteFunc(all, func(f Flag) bool {
		return (f.Name == TempDirFlag || f.Name == LingerFlag) && !slices.Contains(more, f.Name)
	})
}

// Names returns the names of flags.
func Names(flags []Flag) (names []string) {
	for _, f := range flags {
		names = append(names, f.Name)
	}
	return names
}

// Args writes o as the arguments of a command that has these flags; more is as for Flags. An older stepmux does not
// know all flags, so the defaults are left out.
func (o *Options) Args(more ...string) (argv []string) {
	for _, f := range o.Flags(more...) {
		if text := f.String(); text != f.usual {
			argv = append(argv, "--"+f.Name, text)
		}
	}
	return argv
}

// MissingHint returns the hint for a VM's program that does not know a flag of Args, according to its standard error,
// or "".
func MissingHint(stderr string) string {
	for _, f := range new(Options).Flags() {
		if strings.Contains(stderr, "unknown flag: --"+f.Name) {
			return f.missing + ": install this version on the VM"
		}
	}
	return ""
}

// Check returns an error if no VM can have the options. It writes the defaults of TempDir and Isolation in one form.
func (o *Options) Check() (err error) {
	o.TempDir = cmp.Or(o.TempDir, defaultTempDir)
	if o.Isolation, err = ParseLevel(string(o.Isolation)); err != nil {
		return fmt.Errorf("isolation %w", err)
	}
	if _, _, _, err := ParseUser(o.BuildUser); err != nil {
		return fmt.Errorf("build user %w", err)
	}
	return CheckLinger(o.Linger)
}

// CheckLinger returns an error if no build can linger for d.
func CheckLinger(d time.Duration) error {
	if d < 0 || d > MaxLinger {
		return fmt.Errorf("a build cannot linger for %v: 0 to %v", d, MaxLinger)
	}
	return nil
}

// Demand is an option that only some programs on a VM fulfil.
type Demand struct {
	// Kind is "isolation" or "limits".
	Kind string
	// Needs is the beginning of a sentence about the demand: "limits need".
	Needs string
	// Otherwise is the end of a hint: how to do without it. It may be empty.
	Otherwise string
}

// Demand returns a demand of o that only a stepmux fulfils, and false if it has none.
func (o *Options) Demand() (Demand, bool) {
	switch level, _ := ParseLevel(string(o.Isolation)); {
	case o.BuildUser != "":
		return Demand{"isolation", "build user " + o.BuildUser + " needs", ", or leave out the build user"}, true
	case o.Limits != Limits{}:
		return Demand{"limits", "limits need", ""}, true
	case level != Auto && level != Off:
		return Demand{"isolation", "isolation " + level.String() + " needs", ", or ask for auto or off"}, true
	}
	return Demand{}, false
}

// OtherUser reports whether builds run as another user than the login. The program must be where both can start it.
func (o *Options) OtherUser() bool { return o.BuildUser != "" }

// InContainer returns the options of a build in a container, which has limits and a user of its own and isolates the
// build. Most containers allow no namespaces, so Auto is Off there.
func (o Options) InContainer() Options {
	o.Limits, o.BuildUser = Limits{}, ""
	if level, _ := ParseLevel(string(o.Isolation)); level == Auto {
		o.Isolation = Off
	}
	return o
}
