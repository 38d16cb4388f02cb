package inventory

import (
	"context"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/healthcheck"
	"github.com/stepmux/stepmux/internal/lazyregexp"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// entryKeys are the keys of an instance. The defaults have all of them except the first two.
var entryKeys = func() []string {
	keys := []string{
		"id", "address",
		"user", "key", "capacity", "max_uses", "labels", "host_keys", "via", "runner", "health",
	}
	for _, f := range new(entry).flags() {
		keys = append(keys, f.Key())
	}
	return keys
}()

// idForm matches valid IDs: an ID appears in tables, on command lines and in URLs.
var idForm = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// IsID reports whether a text can be the ID of an instance in an inventory.
func IsID(id string) bool { return idForm().MatchString(id) }

// entry is an instance as written in the file, or the defaults.
type entry struct {
	at       *yaml.Node
	id, addr string
	user     string
	auth     []login.Auth // empty if not given
	capacity int
	maxUses  int
	labels   map[string]string
	hostKeys []ssh.PublicKey
	via      string // empty for a direct connection
	viaSaid  bool
	runner   []string
	health   healthcheck.Limits
	vmconfig.Options
}

// flags returns the flags for the keys of the options.
func (e *entry) flags() []vmconfig.Flag { return e.Flags(vmconfig.TempDirFlag, vmconfig.LingerFlag) }

// entry reads the keys of an instance, or of the defaults. Missing keys have the value in from.
func (r *reader) entry(n *yaml.Node, what string, known []string, from entry) entry {
	items := r.mapping(n, what, known)
	e := from
	e.at, e.labels = n, maps.Clone(from.labels)
	for _, key := range entryKeys { // in a fixed order, so that the same text always has the same first error
		if value, given := items[key]; given && r.Err == nil {
			r.field(&e, key, value)
		}
	}
	if items["via"] == nil && e.via == e.id {
		e.via = "" // the defaults do not apply to the jump host itself
	}
	return e
}

func (r *reader) field(e *entry, key string, n *yaml.Node) {
	switch key {
	case "id":
		if e.id = r.text(n, "id"); !IsID(e.id) {
			r.Failf(n,
				"the id %q cannot be used: it has 1 to 128 of A-Z a-z 0-9 . _ : - and begins with a letter or digit", e.id)
		}
	case "address":
		e.addr = r.address(n)
	case "user":
		e.user = r.text(n, "user")
	case "key":
		e.auth = r.keyFile(n)
	case "capacity":
		e.capacity = r.count(n, "capacity",
			"an instance takes at least one build at once; for none use stepmux drain, or remove it")
	case "max_uses":
		e.maxUses = r.count(n, "max_uses", "an instance takes at least one build; for any number leave it out")
	case "labels":
		e.labels = r.labels(n, e.labels)
	case "host_keys":
		e.hostKeys = r.readHostKeys(n)
	case "via":
		e.via, e.viaSaid = r.via(n), true
	case "runner":
		e.runner = r.runner(n)
	case "health":
		e.health = r.health(n, e.health)
	default:
		for _, f := range e.flags() {
			if f.Key() != key {
				continue
			}
			if err := f.Set(r.text(n, key)); err != nil {
				r.Failf(n, "%s %v", key, err)
			}
		}
	}
}

// address reads host or host:port.
func (r *reader) address(n *yaml.Node) string {
	text := r.text(n, "address")
	if strings.ContainsAny(text, "/@ ") {
		r.Failf(n, "the address %q is not host or host:port (the account goes to user:)", text)
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
		if host == "" || strings.Contains(host, ":") && net.ParseIP(host) == nil {
			r.Failf(n, "the address %q is not host or host:port", text)
		}
		return host
	}
	if host == "" {
		r.Failf(n, "the address %q is not host or host:port", text)
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		r.Failf(n, "the address %q: the port is not a number from 1 to 65535", text)
	}
	return net.JoinHostPort(host, port)
}

// keyFile reads the private key in a file.
func (r *reader) keyFile(n *yaml.Node) []login.Auth {
	path := r.text(n, "key")
	if strings.Contains(path, "PRIVATE KEY") {
		r.Failf(n, "key names a file; the private key itself does not belong here")
	}
	if rest, home := strings.CutPrefix(path, "~/"); home {
		dir, err := os.UserHomeDir()
		if err != nil {
			r.Failf(n, "key %s: %v", path, err)
		}
		path = filepath.Join(dir, rest)
	} else if !filepath.IsAbs(path) {
		path = filepath.Join(r.dir, path)
	}
	if r.Err != nil {
		return nil
	}
	resolver, err := r.resolver()
	if err != nil {
		r.Failf(n, "key: %v", err)
		return nil
	}
	auth, err := keyOf(r.ctx, resolver, path)
	if err != nil {
		r.Failf(n, "key: %v", err)
	}
	return auth
}

// keyOf reads a private key.
func keyOf(ctx context.Context, resolver Resolver, path string) ([]login.Auth, error) {
	auth, err := resolver.KeyFile(ctx, path)
	return []login.Auth{auth}, err
}

// labels adds an instance's labels to those of the defaults.
func (r *reader) labels(n *yaml.Node, from map[string]string) map[string]string {
	own := map[string]string{}
	for _, e := range r.Mapping(n, "labels") {
		own[e.Key] = r.String(e.Value, "the label "+e.Key)
	}
	return merged(from, own)
}

// merged returns the labels of both. Those of own count.
func merged(from, own map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, from)
	maps.Copy(all, own)
	return all
}

func (r *reader) readHostKeys(n *yaml.Node) []ssh.PublicKey {
	var keys []ssh.PublicKey
	for _, item := range r.list(n, "host_keys",
		"host_keys is empty: no server could be the right one; leave it out to use known_hosts") {
		key, _, options, _, err := ssh.ParseAuthorizedKey([]byte(r.text(item, "a host key")))
		if err != nil || len(options) > 0 {
			r.Failf(item,
				`this is no host key; write it as "ssh-ed25519 AAAA...", as in the VM's /etc/ssh/ssh_host_ed25519_key.pub`)
		}
		keys = append(keys, key)
	}
	return keys
}

// via reads a jump host. An empty text means a direct connection, even if the defaults name a jump host.
func (r *reader) via(n *yaml.Node) string {
	via := r.String(n, "via")
	if strings.ContainsAny(via, " /,") {
		r.Failf(n, "via %q is neither the id of an instance nor [user@]host[:port]", via)
	}
	return via
}

// runner reads a command: a text that is split at blanks, or a list.
func (r *reader) runner(n *yaml.Node) []string {
	if n.Kind == yaml.ScalarNode {
		words := strings.Fields(r.text(n, "runner"))
		if len(words) == 0 {
			r.Failf(n, "runner is empty")
		}
		return words
	}
	var words []string
	for _, item := range r.list(n, "runner", "runner is empty") {
		words = append(words, r.text(item, "a word of runner"))
	}
	return words
}

// instances reads the list of instances.
func (r *reader) instances(n *yaml.Node) []instance.Instance {
	list := r.list(n, "instances:", "the inventory lists no instances; to let them take no builds use stepmux drain")
	if len(list) > maxInstances {
		r.Failf(n, "the inventory lists %d instances, at most %d are possible", len(list), maxInstances)
	}
	var entries []entry
	ids := map[string]entry{}
	for _, item := range list {
		e := r.entry(item, "an instance", entryKeys, r.defaults)
		r.checkNamed(e, ids)
		entries = append(entries, e)
		ids[e.id] = e
		if r.Err != nil {
			return nil
		}
	}
	var all []instance.Instance
	for _, e := range entries {
		r.checkVia(e.id, ids)
		if r.Err != nil {
			return nil
		}
		all = append(all, r.instance(e, ids))
	}
	all = instance.ShareJumpHosts(all)
	if _, err := instance.NewGroup(all...); err != nil {
		r.Failf(n, "%v", err)
	}
	return all
}

// checkNamed checks that an entry has its required keys, and a unique id.
func (r *reader) checkNamed(e entry, before map[string]entry) {
	other, twice := before[e.id]
	switch {
	case e.id == "":
		r.Failf(e.at, "the instance has no id:")
	case e.addr == "":
		r.Failf(e.at, "the instance %s has no address:", e.id)
	case twice:
		r.Failf(e.at, "the id %q is that of the instance in line %d already", e.id, other.at.Line)
	}
}

// checkVia checks the chain of jump hosts of an instance.
func (r *reader) checkVia(id string, entries map[string]entry) {
	way := []string{id}
	for via := entries[id].via; via != "" && r.Err == nil; via = entries[via].via {
		loop := slices.Contains(way, via)
		way = append(way, via)
		if loop {
			r.Failf(entries[id].at, "the way to %s never arrives: %s", id, strings.Join(way, " via "))
		}
	}
}
