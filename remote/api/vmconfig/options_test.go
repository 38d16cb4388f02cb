package vmconfig

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var everywhere = []string{TempDirFlag, LingerFlag}

// read sets the options by arguments, as a flag set does.
func read(t *testing.T, argv []string) (o Options) {
	t.Helper()
	for i := 0; i < len(argv); i += 2 {
		require.NoError(t, flag(t, &o, strings.TrimPrefix(argv[i], "--")).Set(argv[i+1]))
	}
	return o
}

func flag(t *testing.T, o *Options, name string) Flag {
	t.Helper()
	for _, f := range o.Flags(everywhere...) {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("no flag %s", name)
	return Flag{}
}

func TestOptionsAreReadAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]Options{
		"": {},
		"--temp-dir /x --isolation private --build-user 2000-2015 --linger 2m0s --build-pids 64": {
			TempDir: "/x", Isolation: Private, BuildUser: "2000-2015", Linger: 2 * time.Minute, Limits: Limits{PIDs: 64},
		},
		"--isolation off":         {Isolation: Off},
		"--build-user ci":         {BuildUser: "ci"},
		"--build-memory 512M":     {Limits: Limits{Memory: 512 << 20}},
		"--build-memory 2GiB":     {Limits: Limits{Memory: 2 << 30}},
		"--build-memory 1T":       {Limits: Limits{Memory: 1 << 40}},
		"--build-memory 33554432": {Limits: Limits{Memory: 32 << 20}},
		"--build-memory 65536KB":  {Limits: Limits{Memory: 64 << 20}},
		"--build-memory 64m":      {Limits: Limits{Memory: 64 << 20}}, // as for docker run
		"--build-memory 1.5gib":   {Limits: Limits{Memory: 3 << 29}},
		"--build-cpus 0.5":        {Limits: Limits{CPUs: 0.5}},
	} {
		got := read(t, strings.Fields(text))
		require.Equal(t, want, got)
		require.Equal(t, got, read(t, got.Args(everywhere...)), text)
	}
}

// A field without a row in Flags could be set by Go programs only.
func TestEachFieldHasAFlag(t *testing.T) {
	texts := map[string]string{
		TempDirFlag: "/x", "isolation": "off", "build-user": "ci", LingerFlag: "1m",
		MemoryFlag: "1G", PIDsFlag: "64", CPUsFlag: "1",
	}
	var o Options
	for _, f := range o.Flags(everywhere...) {
		require.NoError(t, f.Set(texts[f.Name]), f.Name)
	}
	for _, part := range []any{o, o.Limits} {
		for field, value := range reflect.ValueOf(part).Fields() {
			require.False(t, value.IsZero(), "no flag sets %s", field.Name)
		}
	}
}

func TestTheDefaultsAreNotWritten(t *testing.T) {
	// An older stepmux on the VM does not know all flags.
	require.Empty(t, new(Options).Args(everywhere...))
	require.Empty(t, (&Options{TempDir: "/tmp", Isolation: "auto"}).Args(everywhere...))
	o := Options{TempDir: "/x", Linger: time.Minute, Limits: Limits{CPUs: 1.5}}
	require.Equal(t, []string{"--build-cpus", "1.5"}, o.Args(), "only some commands know the others")
}

func TestEachFlagRefusesATextThatItCannotMean(t *testing.T) {
	for name, texts := range map[string][]string{
		TempDirFlag:  {"", "tmp"},
		"isolation":  {"", "high", "Off"},
		"build-user": {"0-10", "a b"},
		LingerFlag:   {"", "soon", "-1s", "8760h"},
		"build-memory": {
			"", "31M", "512MB!", "-1G", "1e9", "1.5.0G", ".", "inf", "0x40000000", "M", "99999999T",
			"9223372036854775807K", " 1G",
		},
		"build-pids": {"", "15", "1e3", "-5", "4294967296"},
		"build-cpus": {"", "0", "0.001", "NaN", "Inf", "-1", "two"},
	} {
		for _, text := range texts {
			require.Error(t, flag(t, &Options{}, name).Set(text), "%s %q", name, text)
		}
	}
}

// A new option without a hint would fail a build on a VM with an older stepmux without the advice to update it.
func TestEachFlagThatAManagerSendsHasAHintForAnOlderProgram(t *testing.T) {
	for _, name := range Names(new(Options).Flags()) {
		require.Regexp(t, "^the step runner knows no .*: install this version on the VM$",
			MissingHint("unknown flag: --"+name))
	}
	require.Empty(t, MissingHint("unknown flag: --other"))
}

func TestCheckRefusesWhatNoVMCanHave(t *testing.T) {
	for want, o := range map[string]Options{
		`isolation "high": use auto, off, processes or private`: {Isolation: "high"},
		`build user "a b": use the name of a user`:              {BuildUser: "a b"},
		"a build cannot linger for -1s: 0 to 24h0m0s":           {Linger: -time.Second},
	} {
		require.ErrorContains(t, o.Check(), want)
	}
	o := Options{Isolation: "auto"}
	require.NoError(t, o.Check())
	require.Equal(t, Options{TempDir: "/tmp", Isolation: Auto}, o)
}

func TestOnlyOptionsThatChangeSomethingAreADemand(t *testing.T) {
	for needs, o := range map[string]Options{
		"":                          {TempDir: "/x", Isolation: "auto"},
		"limits need":               {Limits: Limits{PIDs: 64}},
		"build user ci needs":       {BuildUser: "ci"},
		"isolation private needs":   {Isolation: Private},
		"isolation processes needs": {Isolation: Processes},
	} {
		got, demands := o.Demand()
		require.Equal(t, needs, got.Needs)
		require.Equal(t, needs != "", demands)
	}
}

//stepmux:faults users | An option whose default is also written out is compared with one of the two
func TestABuildInAContainerHasItsOwnLimitsAndUser(t *testing.T) {
	all := Options{TempDir: "/x", BuildUser: "ci", Linger: time.Minute, Limits: Limits{PIDs: 64}}
	for asked, want := range map[Level]Level{Auto: Off, "auto": Off, Off: Off, Private: Private} {
		all.Isolation = asked
		require.Equal(t, Options{TempDir: "/x", Linger: time.Minute, Isolation: want}, all.InContainer())
	}
}
