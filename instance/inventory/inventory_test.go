package inventory_test

import (
	"cmp"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/healthcheck"
	"github.com/stepmux/stepmux/instance/inventory"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// writeKey writes a private key and returns its public one as a line.
func writeKey(t testing.TB, path string) string {
	t.Helper()
	signer, key := sshtest.NewKey(t)
	block, err := ssh.MarshalPrivateKey(key, "")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
}

// way is a Resolver that knows a key, a jump host and no names.
type way struct{ jump *instance.Instance }

func (w way) KeyFile(_ context.Context, file string) (login.Auth, error) { return login.KeyFile(file) }

func (w way) Resolve(_ context.Context, h inventory.Host) (string, mux.Config, *instance.Instance, error) {
	if h.Place == "unknown" {
		return "", mux.Config{}, nil, errors.New("no way to log in")
	}
	cfg := loginAs(cmp.Or(h.User, "me"), h.Auth)
	if h.HostKeys != nil {
		cfg.HostKeys = *h.HostKeys
	}
	switch h.Jump {
	case "none":
		return addr(h.Place), cfg, nil, nil
	case "":
		return addr(h.Place), cfg, w.jump, nil
	default:
		user, host, named := strings.Cut(h.Jump, "@")
		if !named {
			user, host = cmp.Or(h.JumpUser, "me"), h.Jump
		}
		jump := &instance.Instance{
			ID: "jump " + user + "@" + addr(host), Addr: addr(host),
			SSH: loginAs(user, h.JumpAuth),
		}
		if jump.Addr == addr(h.Place) && user == cfg.User {
			jump = nil // it is that host itself
		}
		return addr(h.Place), cfg, jump, nil
	}
}

func loginAs(user string, auth []login.Auth) mux.Config {
	if len(auth) == 0 {
		auth = []login.Auth{login.Password("x")}
	}
	return mux.Config{User: user, Auth: auth, HostKeys: login.InsecureHostKeys()}
}

func addr(place string) string {
	if _, _, err := net.SplitHostPort(place); err == nil {
		return place
	}
	return net.JoinHostPort(place, "22")
}

func fallback(t testing.TB) inventory.Fallback {
	t.Helper()
	return inventory.Fallback{
		Capacity: 3,
		Runner:   []string{"fallback"},
		Resolver: func() (inventory.Resolver, error) { return way{}, nil },
	}
}

func parse(t testing.TB, text string) ([]instance.Instance, error) {
	t.Helper()
	dir := t.TempDir()
	writeKey(t, filepath.Join(dir, "id"))
	return inventory.Parse(t.Context(), "fleet.yml", dir, []byte(text), fallback(t))
}

func TestParseFillsInDefaults(t *testing.T) {
	dir := t.TempDir()
	writeKey(t, filepath.Join(dir, "id"))
	host := writeKey(t, filepath.Join(dir, "host"))
	all, err := inventory.Parse(t.Context(), "fleet.yml", dir, []byte(`
defaults:
  user: ci
  key: id
  max_uses: 9
  labels: {zone: a, size: small}
  via: bastion
  temp_dir: /var/tmp
  linger: 2m
  runner: /opt/stepmux --x
  health: {free_space: 2GiB, load: 4, clock_skew: 30s, free_memory: 512m}
instances:
  - {id: bastion, address: b.example.com}
  - id: 2
    address: "[2001:db8::1]:2222"
    user: other
    capacity: 8
    max_uses: 1
    labels: {size: large}
    host_keys: ["`+host+`"]
    via: ""
    runner: [a, b c]
    temp_dir: /x
    linger: 0
    health: {free_space: 0, free_inodes: 9, load: 0.5}
  - {id: v6, address: "2001:db8::2", via: me@jump:22}
  - {id: named, address: x, via: jump}
  - {id: same, address: y, via: other@jump}
  - {id: here, address: jump, user: me, via: ""}
`), fallback(t))
	require.NoError(t, err)
	require.Len(t, all, 6)
	first, second, third := all[0], all[1], all[2]
	require.Equal(t, "bastion", first.ID)
	require.Equal(t, 2*time.Minute, first.Linger)
	require.Zero(t, second.Linger)
	of := healthcheck.Limits{
		FreeSpace: 2 << 30, FreeInodes: 256, FreeMemory: 512 << 20, Load: 4, ClockSkew: 30 * time.Second,
	}
	require.Equal(t, of, first.Health)
	of.FreeSpace, of.FreeInodes, of.Load = 0, 9, 0.5
	require.Equal(t, of, second.Health)
	require.Equal(t, "b.example.com:22", first.Addr)
	require.Equal(t, "ci", first.SSH.User)
	require.Equal(t, "key "+filepath.Join(dir, "id"), first.SSH.Auth[0].String())
	require.Equal(t, 3, first.Capacity, "the fallback's")
	require.Equal(t, 9, first.MaxUses)
	require.Equal(t, map[string]string{"zone": "a", "size": "small"}, first.Labels)
	require.Equal(t, []string{"/opt/stepmux", "--x"}, first.Runner)
	require.Equal(t, "/var/tmp", first.TempDir)
	require.Nil(t, first.Jump, "the jump host is not behind itself")

	require.Equal(t, "2", second.ID)
	require.Equal(t, "[2001:db8::1]:2222", second.Addr)
	require.Equal(t, "other", second.SSH.User)
	require.Equal(t, 8, second.Capacity)
	require.Equal(t, 1, second.MaxUses)
	require.Equal(t, map[string]string{"zone": "a", "size": "large"}, second.Labels)
	require.Equal(t, []string{"a", "b c"}, second.Runner)
	require.Equal(t, "/x", second.TempDir)
	require.Nil(t, second.Jump)
	require.NotEqual(t, first.Revision, second.Revision)

	require.Equal(t, "[2001:db8::2]:22", third.Addr)
	require.Equal(t, &instance.Instance{ID: "here"}, third.Jump, "one that is an instance is that one")
	require.Equal(t, first.Revision, third.Revision)
	for i, user := range []string{"ci", "other"} {
		jump := all[3+i].Jump
		require.Equal(t, user, jump.SSH.User, "the defaults', unless it is said")
		require.Equal(t, "jump:22", jump.Addr)
		require.Equal(t, first.SSH.Auth[0].String(), jump.SSH.Auth[0].String())
		require.NotEmpty(t, jump.Revision)
	}
}

func TestParseFallsBackToWhatTheProgramWasTold(t *testing.T) {
	all, err := parse(t, "instances: [{id: a, address: x}]")
	require.NoError(t, err)
	require.Equal(t, "me", all[0].SSH.User)
	require.Equal(t, "password", all[0].SSH.Auth[0].String())
	require.Equal(t, []string{"fallback"}, all[0].Runner)
}

func TestWithoutViaTheResolverKnowsTheWay(t *testing.T) {
	f := fallback(t)
	f.Resolver = func() (inventory.Resolver, error) {
		return way{&instance.Instance{ID: "b", Addr: "b:22", SSH: loginAs("me", nil)}}, nil
	}
	all, err := inventory.Parse(t.Context(), "f", t.TempDir(), []byte(`instances:
  - {id: one, address: x}
  - {id: two, address: x, via: ""}
  - {id: three, address: x, via: two}
  - {id: four, address: x, via: c}`), f)
	require.NoError(t, err)
	require.Equal(t, "b", all[0].Jump.ID)
	require.Nil(t, all[1].Jump)
	require.Equal(t, &instance.Instance{ID: "two"}, all[2].Jump)
	require.Equal(t, "c:22", all[3].Jump.Addr)
}

func TestParseSaysWhatTheResolverDoes(t *testing.T) {
	_, err := parse(t, "instances: [{id: a, address: unknown}]")
	require.EqualError(t, err, "fleet.yml:1:13: the instance a: no way to log in")
	f := fallback(t)
	f.Resolver = func() (inventory.Resolver, error) { return nil, errors.New("no ssh_config") }
	_, err = inventory.Parse(t.Context(), "f", t.TempDir(), []byte("instances: [{id: a, address: x}]"), f)
	require.EqualError(t, err, "f:1:13: the instance a: no ssh_config")
}

func TestParseSaysWhatIsWrongAndWhere(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"empty":    {"", "fleet.yml: the inventory is empty"},
		"not YAML": {"instances: [", "fleet.yml:2:1: not valid YAML: "},
		"a list":   {"- a", "fleet.yml:1:1: an inventory must be a mapping"},
		"two documents": {
			"instances: [{id: a, address: x}]\n---\na: b",
			"fleet.yml:3:1: an inventory is one YAML document",
		},
		"no instances": {"defaults: {}", "fleet.yml:1:1: the key instances: is missing"},
		"empty list": {
			"instances: []",
			"fleet.yml:1:12: the inventory lists no instances; to let them take no builds use stepmux drain",
		},
		"misspelt": {"instance: []", `fleet.yml:1:1: unknown key "instance", did you mean "instances"?`},
		"misspelt inside": {
			"instances:\n  - id: a\n    addresss: x",
			`fleet.yml:3:5: unknown key "addresss", did you mean "address"?`,
		},
		"dashes": {
			"instances:\n  - {id: a, max-uses: 1}",
			`fleet.yml:2:13: unknown key "max-uses", did you mean "max_uses"?`,
		},
		"not near": {
			"instances:\n  - {colour: a}",
			`fleet.yml:2:6: unknown key "colour"; an instance has id, address, user, key,`,
		},
		"id in defaults": {"defaults: {id: a}\ninstances: []", `fleet.yml:1:12: unknown key "id"`},
		"key twice": {
			"instances:\n  - id: a\n    id: b",
			`fleet.yml:3:5: the key "id" is given twice`,
		},
		"id twice": {
			"instances:\n  - {id: a, address: x}\n  - {id: a, address: y}",
			`fleet.yml:3:5: the id "a" is that of the instance in line 2 already`,
		},
		"no id":      {"instances: [{address: x}]", "fleet.yml:1:13: the instance has no id:"},
		"bad id":     {"instances: [{id: a b}]", `fleet.yml:1:18: the id "a b" cannot be used`},
		"bad first":  {"instances: [{id: .a}]", `fleet.yml:1:18: the id ".a" cannot be used`},
		"long id":    {"instances: [{id: " + strings.Repeat("x", 129) + "}]", "fleet.yml:1:18: the id \"xxx"},
		"no address": {"instances: [{id: a}]", "fleet.yml:1:13: the instance a has no address:"},
		"a URL": {
			"instances: [{id: a, address: 'ssh://ci@x'}]",
			"fleet.yml:1:30: the address \"ssh://ci@x\" is not host or host:port",
		},
		"bad port": {
			"instances: [{id: a, address: 'x:99999'}]",
			"fleet.yml:1:30: the address \"x:99999\": the port is not a number from 1 to 65535",
		},
		"port 0": {
			"instances: [{id: a, address: 'x:0'}]",
			"fleet.yml:1:30: the address \"x:0\": the port is not a number from 1 to 65535",
		},
		"no host": {"instances: [{id: a, address: ':22'}]", "fleet.yml:1:30: the address"},
		"free space": {
			"instances: [{id: a, address: x, health: {free_space: -1}}]",
			`fleet.yml:1:54: free_space "-1" cannot be used: write a size such as 2GiB, or 0 for no limit`,
		},
		"free inodes": {
			"instances: [{id: a, address: x, health: {free_inodes: 1e3}}]",
			`fleet.yml:1:55: free_inodes "1e3" cannot be used: write a number of files such as 10000, or 0 for no limit`,
		},
		"free memory": {
			"instances: [{id: a, address: x, health: {free_memory: much}}]",
			`fleet.yml:1:55: free_memory "much" cannot be used: write a size such as 512MiB, or 0 for no limit`,
		},
		"load": {
			"instances: [{id: a, address: x, health: {load: .nan}}]",
			`fleet.yml:1:48: load ".nan" cannot be used: write a number such as 4, for each processor, or 0 for no limit`,
		},
		"endless load": {
			"instances: [{id: a, address: x, health: {load: Inf}}]", `fleet.yml:1:48: load "Inf" cannot be used`,
		},
		"clock skew": {
			"instances: [{id: a, address: x, health: {clock_skew: 5}}]",
			`fleet.yml:1:54: clock_skew "5" cannot be used: write a duration such as 30s, or 0 for no limit`,
		},
		"no health": {
			"instances: [{id: a, address: x, health: {space: 5}}]",
			`fleet.yml:1:42: unknown key "space"; health has free_space, free_inodes, free_memory, load, clock_skew`,
		},
		"capacity 0": {"instances: [{id: a, address: x, capacity: 0}]", "fleet.yml:1:43: capacity 0: an instance " +
			"takes at least one build at once; for none use stepmux drain, or remove it"},
		"capacity -1": {"instances: [{id: a, address: x, capacity: -1}]", "fleet.yml:1:43: capacity -1: "},
		"capacity many": {
			"instances: [{id: a, address: x, capacity: many}]",
			`fleet.yml:1:43: capacity must be a whole number, not "many"`,
		},
		"capacity in list": {
			"instances: [{id: a, address: x, capacity: [1]}]",
			"fleet.yml:1:43: capacity must be a text, not a list",
		},
		"default capacity": {"defaults: {capacity: 0}\ninstances: []", "fleet.yml:1:22: capacity 0"},
		"max_uses 0": {
			"instances: [{id: a, address: x, max_uses: 0}]",
			"fleet.yml:1:43: max_uses 0: an instance takes at least one build; for any number leave it out",
		},
		"key missing": {
			"instances:\n  - id: a\n    address: x\n    key: nowhere",
			"fleet.yml:4:10: key: read private key: ",
		},
		"key itself": {
			"instances:\n  - id: a\n    key: -----BEGIN PRIVATE KEY-----",
			"fleet.yml:3:10: key names a file",
		},
		"key null": {"instances:\n  - id: a\n    key:", "fleet.yml:3:9: key must be a text"},
		"host key": {
			"instances: [{id: a, address: x, host_keys: [SHA256:abc]}]",
			"fleet.yml:1:45: this is no host key; write it as",
		},
		"no host keys": {"instances: [{id: a, address: x, host_keys: []}]", "fleet.yml:1:44: host_keys is empty"},
		"one host key": {
			"instances: [{id: a, address: x, host_keys: ssh-ed25519}]",
			"fleet.yml:1:44: host_keys must be a list",
		},
		"relative temp_dir": {
			"instances: [{id: a, address: x, temp_dir: tmp}]",
			`fleet.yml:1:43: temp_dir "tmp" is not absolute`,
		},
		"no linger": {
			"instances: [{id: a, address: x, linger: soon}]", `fleet.yml:1:41: linger "soon" is not a time from 0 to 24h0m0s`,
		},
		"negative linger": {
			"instances: [{id: a, address: x, linger: -1s}]", `fleet.yml:1:41: linger "-1s" is not a time from 0 to 24h`,
		},
		"a year's linger": {
			"instances: [{id: a, address: x, linger: 8760h}]", `fleet.yml:1:41: linger "8760h" is not a time from 0`,
		},
		"empty runner":      {"instances: [{id: a, address: x, runner: ' '}]", "fleet.yml:1:41: runner is empty"},
		"empty runner list": {"instances: [{id: a, address: x, runner: []}]", "fleet.yml:1:41: runner is empty"},
		"bad via":           {"instances: [{id: a, address: x, via: 'ssh://b'}]", `fleet.yml:1:38: via "ssh://b" is neither`},
		"via itself": {
			"instances: [{id: a, address: x, via: a}]",
			"fleet.yml:1:13: the way to a never arrives: a via a",
		},
		"via in a loop": {
			"instances:\n  - {id: a, address: x, via: b}\n  - {id: b, address: x, via: c}\n  - {id: c, address: x, via: b}",
			"fleet.yml:2:5: the way to a never arrives: a via b via c via b",
		},
		"via too long": {
			"instances:\n  - {id: a0, address: x}" + hops(9),
			"fleet.yml:2:3: instance: more than 8 jump hosts on the way: a9 -> a8",
		},
		"labels list": {"instances: [{id: a, labels: [x]}]", "fleet.yml:1:29: labels must be a mapping"},
		"alias": {
			"defaults: &d {user: a}\ninstances: [*d]",
			"fleet.yml:1:11: anchors and aliases are not supported here",
		},
		"tag": {"instances: [{id: !!int 3}]", "fleet.yml:1:18: the tag is not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, test.text)
			require.ErrorContains(t, err, test.want)
			require.True(t, strings.HasPrefix(err.Error(), test.want), err.Error())
		})
	}
}

// hops returns n instances of which each is behind the one before.
func hops(n int) string {
	text := ""
	for i := range n {
		text += fmt.Sprintf("\n  - {id: a%d, address: x, via: a%d}", i+1, i)
	}
	return text
}

func TestParseBoundsAnInventory(t *testing.T) {
	_, err := parse(t, strings.Repeat("#", 4<<20+1))
	require.ErrorContains(t, err, "more than 4 MiB")
	_, err = parse(t, "instances: ["+strings.Repeat("{},", 10_001)+"]")
	require.ErrorContains(t, err, "lists 10001 instances")
	_, err = parse(t, strings.Repeat("[", 100))
	require.ErrorContains(t, err, "not valid YAML")
}

func TestRevisionChangesWithTheKeysAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	writeKey(t, filepath.Join(dir, "id"))
	revision := func(more string) string {
		all, err := inventory.Parse(t.Context(), "f", dir, []byte("instances: [{id: a, address: x, key: id"+more+"}]"),
			fallback(t))
		require.NoError(t, err)
		return all[0].Revision
	}
	was := revision("")
	require.Equal(t, was, revision(", capacity: 7, labels: {a: b}"))
	host := writeKey(t, filepath.Join(dir, "host"))
	require.NotEqual(t, was, revision(", host_keys: ['"+host+"']"))
	writeKey(t, filepath.Join(dir, "id"))
	require.NotEqual(t, was, revision(""))
}

// keys is a Resolver that knows one key, and a jump host with the same.
type keys struct{ file string }

func (k keys) KeyFile(_ context.Context, file string) (login.Auth, error) { return login.KeyFile(file) }

func (k keys) Resolve(context.Context, inventory.Host) (string, mux.Config, *instance.Instance, error) {
	key, err := login.KeyFile(k.file)
	cfg := mux.Config{User: "me", Auth: []login.Auth{key}, HostKeys: login.InsecureHostKeys()}
	return "x:22", cfg, &instance.Instance{ID: "jump", Addr: "j:22", SSH: cfg}, err
}

// A key of --identity or of ssh_config that was replaced was not used for connections until the old one had failed, and
// then refused with its error for 30 s more.
func TestRevisionChangesWithTheKeysThatTheResolverKnows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "id")
	read := func() instance.Instance {
		f := inventory.Fallback{Resolver: func() (inventory.Resolver, error) { return keys{file}, nil }}
		all, err := inventory.Parse(t.Context(), "f", t.TempDir(), []byte("instances: [{id: a, address: x}]"), f)
		require.NoError(t, err)
		return all[0]
	}
	writeKey(t, file)
	was := read()
	require.Equal(t, was.Revision, read().Revision)
	require.Equal(t, was.Jump.Revision, read().Jump.Revision)
	writeKey(t, file)
	require.NotEqual(t, was.Revision, read().Revision)
	require.NotEqual(t, was.Jump.Revision, read().Jump.Revision)
}

func TestTheExampleIsAnInventory(t *testing.T) {
	file, err := inventory.Open(t.Context(), inventory.Config{Path: "../../examples/inventory.yml", Fallback: fallback(t)})
	require.NoError(t, err)
	_, err = instance.NewGroup(file.Instances()...)
	require.NoError(t, err)
	require.Len(t, file.Instances(), 2)
	require.Equal(t, map[string]string{"zone": "a", "size": "large"}, file.Instances()[1].Labels)
}

func FuzzParse(f *testing.F) {
	f.Add("defaults: {user: a, capacity: 2}\ninstances:\n  - {id: a, address: x, labels: {a: b}, via: b}\n")
	f.Add("instances: [{id: a, address: '[::1]:22', runner: [a], max_uses: 3}]")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := inventory.Parse(t.Context(), "f", t.TempDir(), []byte(text), fallback(t))
		if err != nil {
			return
		}
		_, err = instance.NewGroup(all...)
		require.NoError(t, err, "what is read makes sense")
	})
}
