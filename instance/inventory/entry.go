package inventory

import (
	"crypto/sha256"
	"errors"
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
	"github.com/stepmux/stepmux/mux/login"
)

// entryKeys are the keys of an instance; defaults: has all but the first two.
var entryKeys = []string{
	"id", "address",
	"user", "key", "capacity", "max_uses", "labels", "host_keys", "via", "runner", "temp_dir",
}

// maxID is how long an ID may be, in bytes.
const maxID = 128

// validID matches valid IDs: an ID stands in tables, on command lines and in addresses of requests. (No
// regexp: this program is started for each step on a VM, and would compile it there.)
func validID(id string) bool {
	for i, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && strings.IndexByte("._:-", c) >= 0:
		default:
			return false
		}
	}
	return id != "" && len(id) <= maxID
}

// entry is an instance as it is written, or the defaults.
type entry struct {
	at       *yaml.Node
	id, addr string
	user     string
	key      *keyFile
	capacity int
	maxUses  int
	labels   map[string]string
	hostKeys []ssh.PublicKey
	via      string // empty for none
	viaSaid  bool
	ownVia   bool // via: stands in the instance itself
	runner   []string
	tempDir  string
}

// keyFile is a private key.
type keyFile struct {
	auth login.Auth
	sum  [sha256.Size]byte // of the file
}

// entry reads the keys of an instance, or of the defaults. Missing keys keep their value in from.
func (r *reader) entry(n *yaml.Node, what string, known []string, from entry) (entry, error) {
	items, err := r.mapping(n, what, known)
	if err != nil {
		return entry{}, err
	}
	e := from
	e.at = n
	e.labels = maps.Clone(from.labels)
	for _, key := range entryKeys { // in this order, so that the same text has the same first mistake
		if value, given := items[key]; given {
			if err := r.field(&e, key, value); err != nil {
				return entry{}, err
			}
		}
	}
	return e, nil
}

func (r *reader) field(e *entry, key string, n *yaml.Node) (err error) {
	switch key {
	case "id":
		e.id, err = r.id(n)
	case "address":
		e.addr, err = r.address(n)
	case "user":
		e.user, err = r.text(n, "user")
	case "key":
		e.key, err = r.keyFile(n)
	case "capacity":
		e.capacity, err = r.count(n, "capacity",
			"an instance takes at least one build at once; for none use stepmux drain, or remove it")
	case "max_uses":
		e.maxUses, err = r.count(n, "max_uses", "an instance takes at least one build; for any number leave it out")
	case "labels":
		e.labels, err = r.labels(n, e.labels)
	case "host_keys":
		e.hostKeys, err = r.readHostKeys(n)
	case "via":
		e.via, err = r.via(n)
		e.viaSaid, e.ownVia = true, true
	case "runner":
		e.runner, err = r.runner(n)
	case "temp_dir":
		if e.tempDir, err = r.text(n, "temp_dir"); err == nil && !strings.HasPrefix(e.tempDir, "/") {
			err = r.errorf(n, "temp_dir %q is not absolute; it is a directory of the VM", e.tempDir)
		}
	}
	return err
}

func (r *reader) id(n *yaml.Node) (string, error) {
	id, err := r.text(n, "id")
	if err == nil && !validID(id) {
		err = r.errorf(n,
			"the id %q cannot be used: it has 1 to 128 of A-Z a-z 0-9 . _ : - and begins with a letter or digit", id)
	}
	return id, err
}

// address reads host or host:port, and returns it so.
func (r *reader) address(n *yaml.Node) (string, error) {
	text, err := r.text(n, "address")
	if err != nil {
		return "", err
	}
	if strings.ContainsAny(text, "/@ ") {
		return "", r.errorf(n, "the address %q is not host or host:port (the account goes to user:)", text)
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
		if host == "" || strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return "", r.errorf(n, "the address %q is not host or host:port", text)
		}
		return host, nil
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 || host == "" {
		return "", r.errorf(n, "the address %q is not host or host:port", text)
	}
	return net.JoinHostPort(host, port), nil
}

// keyFile reads the private key in a file.
func (r *reader) keyFile(n *yaml.Node) (*keyFile, error) {
	path, err := r.text(n, "key")
	if err != nil {
		return nil, err
	}
	if strings.Contains(path, "PRIVATE KEY") {
		return nil, r.errorf(n, "key names a file; the private key itself does not belong here")
	}
	if rest, home := strings.CutPrefix(path, "~/"); home {
		dir, err := os.UserHomeDir()
		if err != nil {
			return nil, r.errorf(n, "key %s: %v", path, err)
		}
		path = filepath.Join(dir, rest)
	} else if !filepath.IsAbs(path) {
		path = filepath.Join(r.dir, path)
	}
	resolver, err := r.resolver()
	if err != nil {
		return nil, r.errorf(n, "key: %v", err)
	}
	auth, err := resolver.KeyFile(r.ctx, path)
	if err != nil {
		return nil, r.errorf(n, "key: %v", err)
	}
	text, err := os.ReadFile(path) // it is small: it was just read
	if err != nil {
		return nil, r.errorf(n, "key: %v", err)
	}
	return &keyFile{auth: auth, sum: sha256.Sum256(text)}, nil
}

// labels adds an instance's labels to those of the defaults.
func (r *reader) labels(n *yaml.Node, from map[string]string) (map[string]string, error) {
	items, err := r.mapping(n, "labels", nil)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	maps.Copy(all, from)
	for key, value := range items {
		if err := r.plain(value, yaml.ScalarNode, "the label "+key, "a text"); err != nil {
			return nil, err
		}
		all[key] = value.Value
	}
	return all, nil
}

func (r *reader) readHostKeys(n *yaml.Node) ([]ssh.PublicKey, error) {
	list, err := r.list(n, "host_keys")
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, r.errorf(n, "host_keys is empty: no server could be the right one; leave it out to use known_hosts")
	}
	keys := make([]ssh.PublicKey, len(list))
	for i, item := range list {
		text, err := r.text(item, "a host key")
		if err != nil {
			return nil, err
		}
		key, _, options, _, err := ssh.ParseAuthorizedKey([]byte(text))
		if err != nil || len(options) > 0 {
			return nil, r.errorf(item,
				`this is no host key; write it as "ssh-ed25519 AAAA...", as in the VM's /etc/ssh/ssh_host_ed25519_key.pub`)
		}
		keys[i] = key
	}
	return keys, nil
}

// via reads a jump host. An empty text means a direct connection, even if the defaults name a jump host.
func (r *reader) via(n *yaml.Node) (string, error) {
	if err := r.plain(n, yaml.ScalarNode, "via", `a text; for a direct connection write ""`); err != nil {
		return "", err
	}
	if strings.ContainsAny(n.Value, " /,") {
		return "", r.errorf(n, "via %q is neither the id of an instance nor [user@]host[:port]", n.Value)
	}
	return n.Value, nil
}

// runner reads a command: a text that is split at blanks, or a list.
func (r *reader) runner(n *yaml.Node) ([]string, error) {
	if n.Kind == yaml.ScalarNode {
		text, err := r.text(n, "runner")
		words := strings.Fields(text)
		if err == nil && len(words) == 0 {
			err = r.errorf(n, "runner is empty")
		}
		return words, err
	}
	list, err := r.list(n, "runner")
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, r.errorf(n, "runner is empty")
	}
	words := make([]string, len(list))
	for i, item := range list {
		if words[i], err = r.text(item, "a word of runner"); err != nil {
			return nil, err
		}
	}
	return words, nil
}

// instances reads the list of instances.
func (r *reader) instances(n *yaml.Node, defaults entry) ([]instance.Instance, error) {
	list, err := r.list(n, "instances:")
	if err != nil {
		return nil, err
	}
	switch {
	case len(list) == 0:
		return nil, r.errorf(n, "the inventory lists no instances; to let them take no builds use stepmux drain")
	case len(list) > maxInstances:
		return nil, r.errorf(n, "the inventory lists %d instances, at most %d are possible", len(list), maxInstances)
	}
	r.defaults = defaults
	entries := make([]entry, len(list))
	ids := make(map[string]entry, len(list))
	for i, item := range list {
		from := defaults
		from.ownVia = false
		e, err := r.entry(item, "an instance", entryKeys, from)
		if err != nil {
			return nil, err
		}
		if err := r.named(e, ids); err != nil {
			return nil, err
		}
		if !e.ownVia && e.via == e.id {
			e.via = "" // the defaults are not meant for the jump host itself
		}
		entries[i], ids[e.id] = e, e
	}
	all := make([]instance.Instance, len(list))
	for i, e := range entries {
		if err := r.checkVia(e.id, ids); err != nil {
			return nil, err
		}
		if all[i], err = r.instance(e, ids); err != nil {
			return nil, err
		}
	}
	all = instance.ShareJumpHosts(all)
	if _, err := instance.NewGroup(all...); err != nil {
		return nil, r.errorf(n, "%v", err)
	}
	return all, nil
}

// named checks that an entry has its required keys, and a unique id.
func (r *reader) named(e entry, before map[string]entry) error {
	switch {
	case e.id == "":
		return r.errorf(e.at, "the instance has no id:")
	case e.addr == "":
		return r.errorf(e.at, "the instance %s has no address:", e.id)
	}
	if other, twice := before[e.id]; twice {
		return r.errorf(e.at, "the id %q is that of the instance in line %d already", e.id, other.at.Line)
	}
	return nil
}

// checkVia follows the way to an instance.
func (r *reader) checkVia(id string, entries map[string]entry) error {
	way := []string{id}
	for via := entries[id].via; via != ""; via = entries[via].via {
		loop := slices.Contains(way, via)
		way = append(way, via)
		if loop {
			return r.errorf(entries[id].at, "the way to %s never arrives: %s", id, strings.Join(way, " via "))
		}
	}
	return nil
}

// errFallback is the error of Open for an incomplete Fallback.
var errFallback = errors.New("inventory: Fallback.Resolver is nil")
