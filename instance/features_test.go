package instance

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNativeStepsGoByRunOrByTheirFlagAndNeverOffLinux(t *testing.T) {
	// The whole table: where, what the job is and which flags are on; what is offered and what is used.
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
		g, err := NewGroup(Instance{ID: "a", Addr: "a:22", OS: test.os})
		require.NoError(t, err)
		p, err := NewProvider(Config{Group: g})
		require.NoError(t, err)
		t.Cleanup(func() { p.Close() })
		flags := FeatureFlags{FunctionMigrations: test.function, ScriptToStep: test.scriptToStep}
		f := p.Features(flags, test.run)
		require.Equal(t, Features{Variables: true, Shared: true, NativeStepsIntegration: test.offered}, f, "%+v", test)
		require.Equal(t, test.taken, f.UseNativeSteps(flags, test.run), "%+v", test)
	}
}

func TestOneInstanceThatIsNotLinuxKeepsNativeStepsFromTheGroup(t *testing.T) {
	g, err := NewGroup(Instance{ID: "a", Addr: "a:22"}, Instance{ID: "b", Addr: "b:22", OS: "windows"})
	require.NoError(t, err)
	p, err := NewProvider(Config{Group: g})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	require.False(t, p.Features(FeatureFlags{}, true).NativeStepsIntegration)
}

func TestFeatureFlagsAreReadAsGitLabRunnerDoes(t *testing.T) {
	for value, want := range map[string]bool{
		"": false, "true": true, "1": true, "T": true, "TRUE": true, "True": true, "t": true,
		"false": false, "0": false, "F": false, "FALSE": false,
	} {
		flags, err := ParseFeatureFlags(nil, map[string]string{FlagFunctionMigrations: value})
		require.NoError(t, err, value)
		require.Equal(t, FeatureFlags{FunctionMigrations: want}, flags, "%q", value)
	}
	flags, err := ParseFeatureFlags(nil, map[string]string{FlagFunctionMigrations: "yes", FlagScriptToStep: "true"})
	require.ErrorContains(t, err, `FF_FUNCTION_MIGRATIONS_ON_INSTANCE_EXECUTOR is "yes"`)
	require.Equal(t, FeatureFlags{ScriptToStep: true}, flags, "the other is good")

	// The runner's configuration outranks the job.
	flags, err = ParseFeatureFlags(
		map[string]bool{FlagFunctionMigrations: false, FlagScriptToStep: true},
		map[string]string{FlagFunctionMigrations: "true", FlagScriptToStep: "nonsense"},
	)
	require.NoError(t, err, "a variable that does not count is not wrong")
	require.Equal(t, FeatureFlags{ScriptToStep: true}, flags)
}
