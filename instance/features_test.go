package instance

import (
	"testing"

	"github.com/stretchr/testify/require"
)

//stepmux:acceptance executor | Native steps are advertised, and run, for a job with `run:`, without any flag
//stepmux:with instance.TestBuildOfSteps
//stepmux:acceptance executor | `FF_FUNCTION_MIGRATIONS_ON_INSTANCE_EXECUTOR` lets script jobs become steps;
//stepmux:more `FF_SCRIPT_TO_STEP_MIGRATION` is independent of it
//stepmux:with instance.TestFeatureFlagsAreReadAsGitLabRunnerDoes
func TestNativeStepsGoByRunOrByTheirFlagAndNeverOffLinux(t *testing.T) {
	// The whole table: the system, the kind of job and the flags; whether native steps are offered and used.
	for _, test := range []struct {
		os             string
		run            bool
		function       bool // FF_FUNCTION_MIGRATIONS_ON_INSTANCE_EXECUTOR
		scriptToStep   bool // FF_SCRIPT_TO_STEP_MIGRATION
		offered, taken bool
	}{
		{"linux", false, false, false, false, false},
		{"linux", false, false, true, false, false}, // migrated elsewhere, not here
		{"linux", false, true, false, true, false},  // offered, and nobody asks
		{"linux", false, true, true, true, true},
		{"linux", true, false, false, true, true}, // run: needs no flag
		{"linux", true, false, true, true, true},
		{"linux", true, true, false, true, true},
		{"linux", true, true, true, true, true},
		{"windows", false, false, false, false, false},
		{"windows", false, false, true, false, false},
		{"windows", false, true, false, false, false},
		{"windows", false, true, true, false, false},
		{"windows", true, false, false, false, false},
		{"windows", true, false, true, false, false},
		{"windows", true, true, false, false, false},
		{"windows", true, true, true, false, false},
	} {
		g, err := NewGroup(Instance{ID: "a", Addr: "a:22", SSH: loginAs("ci"), OS: test.os})
		require.NoError(t, err)
		p, err := NewProvider(Config{Group: g})
		require.NoError(t, err)
		t.Cleanup(func() { p.Close() })
		flags := map[string]bool{FlagFunctionMigrations: test.function, FlagScriptToStep: test.scriptToStep}
		f, err := p.Features(flags, nil, test.run)
		require.NoError(t, err)
		require.Equal(t, Features{
			Variables: true, Shared: true, NativeStepsIntegration: test.offered, UseNativeSteps: test.taken,
		}, f, "%+v", test)
	}
}

//stepmux:acceptance executor | Nothing is advertised for instances that run Windows
//stepmux:with instance.TestOnlyLinuxInstancesRunAnything
func TestOneInstanceThatIsNotLinuxKeepsNativeStepsFromTheGroup(t *testing.T) {
	g, err := NewGroup(vm("a", 1), Instance{ID: "b", Addr: "b:22", SSH: loginAs("ci"), OS: "windows"})
	require.NoError(t, err)
	p, err := NewProvider(Config{Group: g})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	f, err := p.Features(nil, nil, true)
	require.NoError(t, err)
	require.False(t, f.NativeStepsIntegration)
}

func TestFeatureFlagsAreReadAsGitLabRunnerDoes(t *testing.T) {
	p, err := NewProvider(Config{Group: group(t, 1)})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	for value, want := range map[string]bool{
		"": false, "true": true, "1": true, "T": true, "TRUE": true, "True": true, "t": true,
		"false": false, "0": false, "F": false, "FALSE": false,
	} {
		f, err := p.Features(nil, map[string]string{FlagFunctionMigrations: value}, false)
		require.NoError(t, err, value)
		require.Equal(t, want, f.NativeStepsIntegration, "%q", value)
		require.False(t, f.UseNativeSteps, "%q", value)
		f, err = p.Features(map[string]bool{FlagFunctionMigrations: true}, map[string]string{FlagScriptToStep: value}, false)
		require.NoError(t, err, value)
		require.Equal(t, want, f.UseNativeSteps, "%q", value)
	}
	const toStep, migrate = FlagScriptToStep, FlagFunctionMigrations
	f, err := p.Features(nil, map[string]string{migrate: "yes", toStep: "true"}, false)
	require.ErrorContains(t, err, `FF_FUNCTION_MIGRATIONS_ON_INSTANCE_EXECUTOR is "yes"`)
	require.False(t, f.NativeStepsIntegration)
	f, err = p.Features(nil, map[string]string{migrate: "true", toStep: "yes"}, false)
	require.ErrorContains(t, err, `FF_SCRIPT_TO_STEP_MIGRATION is "yes"`)
	require.True(t, f.NativeStepsIntegration, "the other is good")
	require.False(t, f.UseNativeSteps)

	// The runner's configuration outranks the job.
	f, err = p.Features(
		map[string]bool{migrate: true, toStep: false},
		map[string]string{migrate: "nonsense", toStep: "true"}, false,
	)
	require.NoError(t, err, "a variable that does not count is not wrong")
	require.True(t, f.NativeStepsIntegration)
	require.False(t, f.UseNativeSteps)
	f, err = p.Features(map[string]bool{migrate: false}, map[string]string{migrate: "true"}, false)
	require.NoError(t, err)
	require.False(t, f.NativeStepsIntegration)
}
