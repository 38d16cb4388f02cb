package login

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/percent"
	"github.com/stepmux/stepmux/internal/subprocess"
)

// hostKeyCommandLimit bounds a command for host keys.
var hostKeyCommandLimit = subprocess.Limit{Time: 15 * time.Second, Bytes: 1 << 20}

// HostKeyCommand asks a command for the keys of a server, as OpenSSH does with KnownHostsCommand (ssh_config(5)). The
// command prints lines in the form of known_hosts, with all its markers. argv is run without a shell, twice for each
// connection: before it, to learn which types of key to ask for (%I is ORDER), and to check the key (%I is HOSTNAME). A
// command that prints no line for the server passes the key to the next rule; one that fails, takes longer than 15 s or
// prints more than 1 MiB ends the dial.
//
// The words after the first may have these tokens: %H the name in the form of known_hosts, %h the host, %p the port,
// %k the host or its alias, %n the same as %h, %r the user there, %u and %i the user here and its number, %d its
// home, %l and %L the full and short name of this host, %I as above, and of the checked key %t the type, %f the
// fingerprint and %K the key in base64, all three NONE for ORDER; %% is a %.
func HostKeyCommand(argv ...string) (HostKeys, error) {
	if err := subprocess.Look(argv); err != nil {
		return HostKeys{}, fmt.Errorf("command for host keys: %w", err)
	}
	c := hostKeyCommand(slices.Clone(argv))
	if _, err := c.expand(server{name: "host:22", addr: "host:22"}, "ORDER", nil); err != nil {
		return HostKeys{}, fmt.Errorf("command for host keys: %w", err)
	}
	return policyOf(c.lookup), nil
}

type hostKeyCommand []string

func (c hostKeyCommand) lookup(ctx context.Context, s server) (knowledge, error) {
	db, err := c.ask(ctx, s, "ORDER", nil)
	if err != nil {
		return knowledge{}, err
	}
	known := db.knowledge(s)
	known.policy = "command " + c[0]
	known.check = func(ctx context.Context, remote net.Addr, key ssh.PublicKey) error {
		db, err := c.ask(ctx, s, "HOSTNAME", key)
		if err != nil {
			return err
		}
		if err := db.veto(key); err != nil {
			return err
		}
		return db.check(s, remote, key)
	}
	return known, nil
}

// ask runs the command. Its errors are transient: the service behind the command may come back.
func (c hostKeyCommand) ask(ctx context.Context, s server, why string, key ssh.PublicKey) (*hostDB, error) {
	argv, err := c.expand(s, why, key)
	if err != nil {
		return nil, err
	}
	out, err := subprocess.Output(ctx, argv, hostKeyCommandLimit)
	if err != nil {
		return nil, &LookupError{fmt.Errorf("ask for the host key: %w", err)}
	}
	db, err := parseKnownHosts(out, "the output of "+argv[0])
	if err != nil {
		return nil, &LookupError{fmt.Errorf("ask for the host key: %s does not print known_hosts lines: %w", argv[0], err)}
	}
	return db, nil
}

// LookupError reports that the right host key could not be looked up now. The key that the server showed was not
// judged, so another try may succeed.
type LookupError struct{ err error }

func (e *LookupError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *LookupError) Unwrap() error { return e.err }

// expand returns the command line for a server.
func (c hostKeyCommand) expand(s server, why string, key ssh.PublicKey) ([]string, error) {
	host, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		return nil, err
	}
	alias, _, err := net.SplitHostPort(s.name)
	if err != nil {
		return nil, err
	}
	values := map[byte]string{
		'H': knownhosts.Normalize(s.name), 'h': host, 'p': port, 'k': alias, 'n': host, 'r': s.user,
		'I': why, 't': "NONE", 'f': "NONE", 'K': "NONE",
	}
	if key != nil {
		values['t'], values['f'] = key.Type(), ssh.FingerprintSHA256(plainKey(key))
		values['K'] = base64.StdEncoding.EncodeToString(key.Marshal())
	}
	addLocal(values)
	words, err := percent.ExpandAll(c[1:], values)
	if err != nil {
		return nil, err
	}
	return append([]string{c[0]}, words...), nil
}

// addLocal adds the tokens that describe this host.
func addLocal(values map[byte]string) {
	values['i'] = strconv.Itoa(os.Getuid())
	values['u'] = os.Getenv("USER")
	if me, err := user.Current(); err == nil {
		values['u'], values['d'] = me.Username, me.HomeDir
	}
	name, _ := os.Hostname() // empty if this machine has no name
	values['l'] = name
	values['L'], _, _ = strings.Cut(name, ".")
}
