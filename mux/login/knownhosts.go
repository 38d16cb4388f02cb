package login

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	sshknownhosts "golang.org/x/crypto/ssh/knownhosts"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/spell"
)

// maxKnownHosts bounds a known_hosts file.
const maxKnownHosts = 64 << 20

// KnownHosts accepts the keys that OpenSSH known_hosts files list for the address, and certificates signed by the
// authorities that they list for it (@cert-authority). It refuses @revoked keys. The key of a server that is not
// listed goes to the next rule. The files are read at once, so that a bad file is reported early, and again for each
// connection. Keys of types that cannot be used here, such as DSA, are passed over. So are lines that cannot be read,
// as by ssh: [HostKeys.Warnings] names them. It is an error if such a line may revoke a key or name an authority, or if
// no line can be read.
func KnownHosts(files ...string) (HostKeys, error) {
	now, err := readKnownHosts(files)
	if err != nil {
		return HostKeys{}, err
	}
	keys := policyOf(func(_ context.Context, s server) (knowledge, error) {
		db, err := readKnownHosts(files)
		if err != nil {
			return knowledge{}, err
		}
		known := db.knowledge(s)
		known.check = func(_ context.Context, remote net.Addr, key ssh.PublicKey) error {
			return db.check(s, remote, key)
		}
		return known, nil
	})
	keys.warnings = now.bad.texts()
	return keys, nil
}

// hostDB holds the content of known_hosts files.
type hostDB struct {
	db      *knownhosts.HostKeyDB
	source  string          // for messages
	revoked map[string]bool // by marshaled key
	// patterns are the lines, as file:line, that ssh-keygen -R does not find by the name of a host.
	patterns map[string]bool
	bad      badLines
	// printed is set if no file that remains has the lines.
	printed bool
}

func readKnownHosts(files []string) (*hostDB, error) {
	d, err := readHosts(fmt.Sprintf("%v", files), files...)
	if err != nil {
		return nil, fmt.Errorf("read known hosts: %w", err)
	}
	return d, nil
}

// readHosts reads files in the form of known_hosts. source names them in messages.
func readHosts(source string, files ...string) (*hostDB, error) {
	d := &hostDB{source: source, revoked: map[string]bool{}, patterns: map[string]bool{}}
	var usable []string // files with an entry: NewDB refuses one with bad lines only
	for _, name := range files {
		data, err := boundedfile.Read(name, maxKnownHosts)
		if err != nil {
			return nil, err
		}
		n, entries := 0, 0
		for line := range bytes.Lines(data) {
			n++
			marker, hosts, key, _, _, err := ssh.ParseKnownHosts(line)
			if err != nil && mayPassOver(line) {
				continue
			}
			if err == nil {
				err = checkEntry(marker, hosts)
			}
			if err == nil && len(line) > maxLine {
				err = fmt.Errorf("the line has more than %d bytes", maxLine)
				return nil, badLine(name, n, err) // NewDB ends at such a line
			}
			if err != nil { // NewDB passes over all bad lines
				if errors.Is(err, io.EOF) {
					err = errors.New("the line has no key")
				}
				err = badLine(name, n, err)
				if isForAll(line) || len(line) > maxLine {
					return nil, err
				}
				d.bad.add(err)
				continue
			}
			if marker == "revoked" {
				d.revoked[string(key.Marshal())] = true
			}
			d.patterns[fmt.Sprintf("%s:%d", name, n)] = strings.ContainsAny(strings.Join(hosts, ""), "*?!")
			entries++
		}
		if entries > 0 {
			usable = append(usable, name)
		}
	}
	if len(usable) == 0 && d.bad.count > 0 {
		return nil, d.bad.first[0]
	}
	var err error
	d.db, err = knownhosts.NewDB(usable...)
	return d, err
}

// maxLine bounds a line of a known_hosts file, in bytes: NewDB ends at a longer one.
const maxLine = bufio.MaxScanTokenSize - 2

// badLine returns the error of a line of a known_hosts file that cannot be read, because of err.
func badLine(name string, n int, err error) error {
	return fmt.Errorf("%s:%d: not a host and its key: %w (correct or remove the line)", name, n, err)
}

// badLines are lines that were passed over.
type badLines struct {
	count int
	first []error // at most maxShown
}

func (b *badLines) add(err error) {
	b.count++
	if len(b.first) < maxShown {
		b.first = append(b.first, err)
	}
}

// texts returns a warning for each of the first lines, and one for the rest.
func (b *badLines) texts() []string {
	var all []string
	for _, err := range b.first {
		all = append(all, "passed over "+err.Error())
	}
	if more := b.count - len(b.first); more > 0 {
		all = append(all, fmt.Sprintf("passed over %d more such lines", more))
	}
	return all
}

// isForAll reports whether a line that cannot be read may be about all hosts: it has a marker, or what may be a
// misspelled one.
func isForAll(line []byte) bool {
	fields := strings.Fields(string(line))
	word, ok := strings.CutPrefix(fields[0], "@")
	return ok && (spell.Nearest(word, markers) != "" ||
		slices.ContainsFunc(markers, func(m string) bool { return strings.HasPrefix(word, m) }))
}

// markers are the markers of known_hosts lines.
var markers = []string{"revoked", "cert-authority"}

// mayPassOver reports whether a line of a known_hosts file that cannot be read is empty, a comment, or a key of a type
// that cannot be used here, such as DSA.
func mayPassOver(line []byte) bool {
	fields := strings.Fields(string(line))
	if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
		return true
	}
	if strings.HasPrefix(fields[0], "@") {
		fields = fields[1:]
	}
	if len(fields) < 3 {
		return false
	}
	known := slices.Concat(ssh.SupportedAlgorithms().HostKeys, ssh.InsecureAlgorithms().HostKeys)
	key, _ := base64.StdEncoding.DecodeString(fields[2])
	var inside struct {
		Type string
		Rest []byte `ssh:"rest"`
	}
	return ssh.Unmarshal(key, &inside) == nil && inside.Type == fields[1] && !slices.Contains(known, inside.Type)
}

// checkEntry returns an error for a marker or names of hosts that NewDB cannot read.
func checkEntry(marker string, hosts []string) error {
	switch marker {
	case "", "cert-authority":
	case "revoked":
		return nil // the key is revoked for all hosts
	default:
		return fmt.Errorf("there is no marker @%.40s", marker)
	}
	isBase64 := func(text string) bool { _, err := base64.StdEncoding.DecodeString(text); return err == nil }
	hash := strings.Split(hosts[0], "|")
	if strings.HasPrefix(hosts[0], "|") &&
		(len(hash) != 4 || hash[1] != "1" || !isBase64(hash[2]) || !isBase64(hash[3])) {
		return errors.New("the hash of its host cannot be read")
	}
	for _, name := range hosts {
		if name = strings.TrimPrefix(name, "!"); strings.HasPrefix(name, "[") {
			if _, _, err := net.SplitHostPort(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// knowledge returns the entries for s, without the check.
func (d *hostDB) knowledge(s server) knowledge {
	k := knowledge{policy: "known_hosts " + d.source, veto: d.veto}
	keys := d.db.HostKeys(s.name)
	if plain := withoutPort(s); len(keys) == 0 {
		keys = d.db.HostKeys(plain.name)
	}
	for _, key := range keys {
		if key.Cert {
			k.authority = true
		} else {
			k.types = append(k.types, key.Type())
		}
	}
	return k
}

// veto refuses revoked keys, and certificates that are for or signed by a revoked key.
func (d *hostDB) veto(key ssh.PublicKey) error {
	for _, k := range []ssh.PublicKey{plainKey(key), signer(key)} {
		if d.revoked[string(k.Marshal())] {
			return fmt.Errorf("the server shows a revoked key, %s: %s has it as @revoked", describe(key), d.source)
		}
	}
	return nil
}

// signer returns the authority that signed a certificate. For a plain key it returns the key.
func signer(key ssh.PublicKey) ssh.PublicKey {
	if cert, ok := key.(*ssh.Certificate); ok {
		return cert.SignatureKey
	}
	return key
}

// withoutPort returns s with the name that ssh looks up if it does not find the one with the port.
func withoutPort(s server) server {
	if host, _, err := net.SplitHostPort(s.name); err == nil {
		s.name = net.JoinHostPort(host, "22")
	}
	return s
}

// check judges a key that is not revoked.
func (d *hostDB) check(s server, remote net.Addr, key ssh.PublicKey) error {
	err := d.checkName(s, remote, key)
	if errors.Is(err, errNotKnown) && d.checkName(withoutPort(s), remote, key) == nil {
		return nil
	}
	return err
}

// checkName is check by the name of s alone.
func (d *hostDB) checkName(s server, remote net.Addr, key ssh.PublicKey) error {
	if cert, ok := key.(*ssh.Certificate); ok {
		switch {
		case cert.Signature != nil && cert.Signature.Format == ssh.KeyAlgoRSA:
			return errors.New("the server's certificate is signed with SHA-1: " +
				"have it signed again, with rsa-sha2-512 or another type of key")
		case d.lists(s, cert.SignatureKey, true):
			if err := d.db.HostKeyCallback()(s.name, remote, cert); err != nil {
				return fmt.Errorf("the server's certificate %.200q is not valid for %s: %w", cert.KeyId, s.name, err)
			}
			return nil
		}
		key = cert.Key // the certificate is of no use
	}
	err := d.db.HostKeyCallback()(s.name, remote, key)
	switch {
	case err == nil && !d.lists(s, key, false):
		return fmt.Errorf("%s shows the key of an authority of %s as its own: "+
			"a host must have a key and a certificate of its own", s.name, d.source)
	case err == nil:
		return nil
	case knownhosts.IsHostUnknown(err):
		text := fmt.Sprintf("%s is not in %s: its key is %s; check it, then add the line %q",
			s.name, d.source, describe(key), knownhosts.Line([]string{s.name}, key))
		return notKnown(strings.Join(append([]string{text}, d.bad.texts()...), "; "))
	case knownhosts.IsHostKeyChanged(err) && len(d.knowledge(s).types) == 0: // only an authority is known
		return fmt.Errorf("%s shows %s and no certificate by an authority that %s has for it: "+
			"is HostCertificate set in its sshd_config?", s.name, describe(key), d.source)
	case knownhosts.IsHostKeyChanged(err):
		return d.changed(s, err, key)
	default:
		return err
	}
}

// changed returns the error for another key than the lines have that err names.
func (d *hostDB) changed(s server, err error, key ssh.PublicKey) error {
	lines, _ := errors.AsType[*sshknownhosts.KeyError](err)
	var own, alike []sshknownhosts.KnownKey
	for _, line := range lines.Want {
		if !d.lists(s, line.Key, true) {
			own = append(own, line)
			if line.Key.Type() == key.Type() {
				alike = append(alike, line)
			}
		}
	}
	if len(alike) > 0 {
		own = alike
	}
	var known []string
	for _, line := range own[:min(len(own), maxShown)] {
		where := fmt.Sprintf("%s:%d", line.Filename, line.Line)
		if d.printed {
			where = d.source
		}
		known = append(known, where+" has "+describe(line.Key))
	}
	remedy := "remove the old line"
	if first := own[0]; !d.printed && !d.patterns[fmt.Sprintf("%s:%d", first.Filename, first.Line)] {
		remedy += fmt.Sprintf(": ssh-keygen -f %q -R %q", first.Filename, knownhosts.Normalize(s.name))
	}
	return fmt.Errorf("HOST KEY CHANGED: %s shows %s, but %s: somebody may be in between; if the machine was rebuilt, "+
		"compare the key with the one on its console, and %s", s.name, describe(key), strings.Join(known, ", "), remedy)
}

// maxShown bounds the keys that an error names.
const maxShown = 3

// lists reports whether key is listed for s: as a certificate authority's if authority is true, otherwise as the
// server's own.
func (d *hostDB) lists(s server, key ssh.PublicKey, authority bool) bool {
	return slices.ContainsFunc(d.db.HostKeys(s.name), func(k knownhosts.PublicKey) bool {
		return k.Cert == authority && sameKey(k, key)
	})
}

// parseKnownHosts reads text in the form of known_hosts. The library only reads files.
func parseKnownHosts(text []byte, source string) (*hostDB, error) {
	f, err := os.CreateTemp("", "stepmux-hosts-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // nothing secret stays behind
	_, err = f.Write(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	d, err := readHosts(source, f.Name())
	named := func(err error) error { return errors.New(strings.ReplaceAll(err.Error(), f.Name(), "line")) }
	if err != nil {
		return nil, named(err)
	}
	for i, err := range d.bad.first {
		d.bad.first[i] = named(err)
	}
	d.printed = true
	return d, nil
}
