package inventory_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/inventory"
	"github.com/stepmux/stepmux/internal/yamltree"
)

// defaults reads the value of a key defaults.
func defaults(text string) (inventory.Defaults, error) {
	t, err := yamltree.Load("manager.yml", []byte(text), 1<<20)
	if err != nil {
		return inventory.Defaults{}, err
	}
	r := &yamltree.Reader{Text: t, Rules: yamltree.Rules{MaxCost: 1 << 22, Unquoted: true, NoAliases: "no"}}
	d := inventory.ReadDefaults(r, t.Docs[0])
	return d, r.Err
}

func TestListedVMsHaveTheDefaultsOfTheirGroup(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "id")
	writeKey(t, key)
	host, _, _, _, err := ssh.ParseAuthorizedKey([]byte(writeKey(t, filepath.Join(dir, "host"))))
	require.NoError(t, err)
	d, err := defaults("{user: ci, key: " + key + ", labels: {zone: a, size: small}, via: bastion, temp_dir: /t}")
	require.NoError(t, err)
	labels, err := d.Labels(t.Context(), fallback(t))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"zone": "a", "size": "small"}, labels)
	for range 2 { // each list is a new reading
		all, err := d.Instances(t.Context(), fallback(t), []inventory.Listed{
			{ID: "vm-1", Host: "10.0.0.1"},
			{
				ID: "vm-2", Host: "::1", Port: 2222, User: "root", KeyFile: key, Labels: map[string]string{"size": "large"},
				HostKeys: []ssh.PublicKey{host}, Capacity: 7, MaxUses: 9,
			},
		})
		require.NoError(t, err)
		require.Equal(t, "10.0.0.1:22", all[0].Addr)
		require.Equal(t, "ci", all[0].SSH.User)
		require.Equal(t, 3, all[0].Capacity)
		require.Equal(t, "/t", all[0].TempDir)
		require.Equal(t, labels, all[0].Labels)
		require.Equal(t, "bastion:22", all[0].Jump.Addr)
		require.Equal(t, "[::1]:2222", all[1].Addr)
		require.Equal(t, "root", all[1].SSH.User)
		require.Equal(t, map[string]string{"zone": "a", "size": "large"}, all[1].Labels)
		require.Equal(t, []int{7, 9}, []int{all[1].Capacity, all[1].MaxUses})
		require.NotEqual(t, all[0].Revision, all[1].Revision, "it has a host key")
		_, err = instance.NewGroup(all...)
		require.NoError(t, err)
	}
}

func TestDefaultsOfListedVMsAreChecked(t *testing.T) {
	_, err := defaults("{user: ci, capacity: 3}")
	require.ErrorContains(t, err, `manager.yml:1:12: unknown key "capacity"`)
	d, err := defaults("{key: /no/such}")
	require.NoError(t, err)
	_, err = d.Labels(t.Context(), fallback(t))
	require.ErrorContains(t, err, "manager.yml:1:7: key: read private key")
	for _, vm := range []inventory.Listed{{ID: "a", Host: "unknown"}, {ID: "a", Host: "x", KeyFile: "/no/such"}} {
		_, err = inventory.Defaults{}.Instances(context.Background(), fallback(t), []inventory.Listed{vm})
		require.Error(t, err)
		require.NotContains(t, err.Error(), "nil")
	}
}
