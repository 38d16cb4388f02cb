package groupfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/elastic"
	"github.com/stepmux/stepmux/internal/yamltree"
)

func parse(text string) (Groups, error) {
	t, err := yamltree.Load("manager.yml", []byte(text), 1<<20)
	if err != nil {
		return nil, err
	}
	r := &yamltree.Reader{Text: t, Rules: yamltree.Rules{MaxCost: 1 << 22, Unquoted: true, NoAliases: "write it out"}}
	var g Groups
	g.Read(r, t.Docs[0])
	return g, r.Err
}

func TestAGroupHasAllThatItsKeysSay(t *testing.T) {
	file := filepath.Join(t.TempDir(), "init")
	require.NoError(t, os.WriteFile(file, []byte("#cloud-config"), 0o600))
	all, err := parse(`
- name: linux
  exec: [/bin/sh, -c, "exit 1"]
  config: {zone: a, sizes: [1, 2.5, true, "3", 2026-01-01], deep: {er: x}}
  pass-env: [CLOUD_TOKEN]
  user-data-file: ` + file + `
  defaults: {user: ci, labels: {os: linux}}
  period: 5s
  ready-timeout: 2m
  max-instances: 20
  capacity: 2
  max-uses: 9
  max-age: 8h
  unhealthy-time: 20m
  throttle: {rate: 0.5, burst: 3}
  policies:
    - {idle-time: 10m}
    - periods: ["* 8-17 * * mon-fri"]
      timezone: Europe/Berlin
      idle-count: 4
      scale-factor: 0.2
      scale-factor-limit: 8
      preemptive: false
- {name: other, exec: /bin/true, max-instances: 1, pass-env: []}
`)
	require.NoError(t, err)
	off := false
	require.Equal(t, elastic.Config{
		Capacity: 2, MaxInstances: 20, MaxUses: 9, MaxAge: 8 * time.Hour, UnhealthyTime: 20 * time.Minute,
		Rate: 0.5, Burst: 3, Rules: []elastic.Rule{
			{IdleTime: 10 * time.Minute},
			{
				Periods: []string{"* 8-17 * * mon-fri"}, TimeZone: "Europe/Berlin", IdleCount: 4, ScaleFactor: 0.2,
				ScaleFactorLimit: 8, Preemptive: &off,
			},
		},
	}, all[0].Policy)
	require.Equal(t, []string{"/bin/sh", "-c", "exit 1"}, all[0].Exec.Command)
	require.JSONEq(t, `{"zone":"a","sizes":[1,2.5,true,"3","2026-01-01"],"deep":{"er":"x"}}`,
		string(all[0].Exec.Settings))
	require.Equal(t, []string{"CLOUD_TOKEN"}, all[0].Exec.PassEnv)
	require.Equal(t, "#cloud-config", all[0].UserData)
	require.Equal(t, 5*time.Second, all[0].Period)
	require.Equal(t, 2*time.Minute, all[0].ReadyTimeout)
	require.Equal(t, []string{"/bin/true"}, all[1].Exec.Command)
	require.NotNil(t, all[1].Exec.PassEnv, "an empty list passes nothing on")
	one, err := parse("{name: a, exec: /bin/true, max-instances: 3}")
	require.NoError(t, err)
	require.Len(t, one, 1)
}

func TestAGroupThatCannotWorkIsRefusedWithItsPlace(t *testing.T) {
	group := func(more string) string { return "{name: a, exec: /bin/true, max-instances: 3" + more + "}" }
	for _, test := range []struct{ text, want string }{
		{"{}", `manager.yml:1:1: elastic: name "": write 1 to 32 of a-z 0-9 -`},
		{"{name: a b}", `elastic: name "a b"`},
		{"{name: a}", "exec is missing"},
		{"{name: a, exec: /bin/true}", "max-instances is missing"},
		{"{name: a, exec: /no/such, max-instances: 1}", "elastic a: "},
		{
			"{name: a, exec: /bin/true, max-instances: 0}",
			`manager.yml:1:43: max-instances "0": write a whole number from 1 on`,
		},
		{group(", max-instance: 3"), `unknown key "max-instance", did you mean "max-instances"?`},
		{group(", max-age: 5"), `max-age "5": write a time such as 30s, 5m or 8h`},
		{group(", period: -5s"), `period "-5s"`},
		{group(", throttle: {rate: NaN}"), `rate "NaN": write a number such as 0.5`},
		{group(", throttle: {burst: 0}"), `burst "0"`},
		{group(", throttle: 3"), "throttle must be a mapping"},
		{group(", config: [a]"), "config must be a mapping"},
		{group(", config: {a: !x b}"), "the tag is not supported"},
		{group(", user-data-file: /no/such"), "user-data-file: open /no/such"},
		{group(", defaults: {capacity: 3}"), `unknown key "capacity"`},
		{group(", policies: [{idle-count: -1}]"), `idle-count "-1": write a whole number from 0 on`},
		{group(", policies: [{idle-count: 4}]"), "elastic a: policy 1: idle-count 4: max-instances VMs have 0 to 3 slots"},
		{group(", policies: [{periods: ['* *']}]"), `elastic a: policy 1: period "* *": use five fields`},
		{"[" + group("") + "," + group("") + "]", "there are two groups a: give each another name"},
	} {
		_, err := parse(test.text)
		require.ErrorContains(t, err, test.want)
		require.True(t, strings.HasPrefix(err.Error(), "manager.yml:1:"), err.Error())
	}
}

func TestTheSchemaHasEachKey(t *testing.T) {
	one := new(Groups).Schema()["oneOf"].([]any)[0].(map[string]any)
	keys := one["properties"].(map[string]any)
	require.Len(t, keys, len(groupKeys))
	for _, key := range groupKeys {
		require.Contains(t, keys, key)
	}
	policy := keys["policies"].(map[string]any)["items"].(map[string]any)["properties"].(map[string]any)
	require.Len(t, policy, len(policyKeys))
	for _, key := range policyKeys {
		require.Contains(t, policy, key)
	}
}
