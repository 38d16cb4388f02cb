package sshtarget

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/percent"
)

// settings are the configured values for one host, expanded.
type settings struct {
	name         string // the name that was looked up
	literal      bool   // ssh_config does not apply
	host, port   string
	user         string
	hostKeyAlias string

	identities     []string // files with keys; nil if not configured
	certificates   []string
	identitiesOnly bool
	agent          string // socket; empty for no agent

	knownHosts []string // files; nil if not configured
	proxyJump  []string // in the order of connecting
}

func (s *settings) addr() string { return net.JoinHostPort(s.host, s.port) }

// lookup returns the configured values of a keyword of ssh_config, in order.
type lookup func(keyword string) []string

// newSettings reads the settings for a host. The user and the port in where override them.
func newSettings(where place, values lookup) (*settings, error) {
	first := func(keyword string) string {
		if all := values(keyword); len(all) > 0 {
			return unquote(all[0])
		}
		return ""
	}
	e, err := newExpander(where)
	if err != nil {
		return nil, err
	}
	s := &settings{name: where.host, literal: where.literal, user: where.user, port: where.port}
	if s.host, err = e.expand(cmp.Or(first("HostName"), where.host)); err != nil {
		return nil, err
	}
	s.user = cmp.Or(s.user, first("User"), e.localUser)
	s.port = cmp.Or(s.port, first("Port"), "22")
	if err := checkPort(s.port); err != nil {
		return nil, err
	}
	s.hostKeyAlias = first("HostKeyAlias")
	e.know(s)
	s.identitiesOnly = strings.EqualFold(first("IdentitiesOnly"), "yes")
	if s.identities, err = e.files(values("IdentityFile")); err != nil {
		return nil, err
	}
	if s.certificates, err = e.files(values("CertificateFile")); err != nil {
		return nil, err
	}
	if hosts := values("UserKnownHostsFile"); len(hosts) > 0 {
		if s.knownHosts, err = e.files(splitQuoted(hosts[0])); err != nil {
			return nil, err
		}
	}
	if s.agent, err = e.agent(first("IdentityAgent")); err != nil {
		return nil, err
	}
	jump := first("ProxyJump")
	switch command := first("ProxyCommand"); {
	case jump == "" && command != "" && !strings.EqualFold(command, "none"):
		return nil, fmt.Errorf("ProxyCommand %q cannot be used: name the host to go through with ProxyJump", command)
	case jump != "" && !strings.EqualFold(jump, "none"):
		s.proxyJump = splitList(jump)
	}
	return s, nil
}

// expander expands tokens, ~ and variables in values of ssh_config.
type expander struct {
	values    map[byte]string
	home      string
	localUser string
}

func newExpander(where place) (*expander, error) {
	me, err := user.Current()
	if err != nil {
		return nil, fmt.Errorf("look up the current user: %w", err)
	}
	home, err := os.UserHomeDir() // from the environment, which containers set
	if err != nil {
		home = me.HomeDir
	}
	here, _ := os.Hostname() // empty if this machine has no name
	short, _, _ := strings.Cut(here, ".")
	return &expander{home: home, localUser: me.Username, values: map[byte]string{
		'd': home, 'u': me.Username, 'i': me.Uid, 'l': here, 'L': short, 'n': where.host, 'h': where.host,
	}}, nil
}

// know adds the tokens that depend on the settings.
func (e *expander) know(s *settings) {
	e.values['h'], e.values['p'], e.values['r'] = s.host, s.port, s.user
	e.values['k'] = cmp.Or(s.hostKeyAlias, s.name)
}

func (e *expander) expand(text string) (string, error) { return percent.Expand(text, e.values) }

// file expands a file's name.
func (e *expander) file(name string) (string, error) {
	name, err := expandEnv(name)
	if err != nil {
		return "", err
	}
	if name, err = e.expand(name); err != nil {
		return "", err
	}
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		name = filepath.Join(e.home, rest)
	}
	return name, nil
}

// expandEnv replaces ${NAME} by the environment's value. As in ssh, a variable that is not set is an error, and any
// other $ is kept.
func expandEnv(text string) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		name, after, closed := strings.Cut(rest, "}")
		if !found || !closed {
			out.WriteString(text)
			return out.String(), nil
		}
		value, set := os.LookupEnv(name)
		if !set {
			return "", fmt.Errorf("expand %q: the environment has no %s", text, name)
		}
		out.WriteString(before + value)
		text = after
	}
}

// files expands the names of files. It returns nil for no names, and an empty list for the name "none".
func (e *expander) files(names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	all := []string{}
	for _, name := range names {
		name = unquote(name)
		if strings.EqualFold(name, "none") {
			continue
		}
		file, err := e.file(name)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(all, file) {
			all = append(all, file)
		}
	}
	return all, nil
}

// agent returns the socket of the agent. IdentityAgent names a file or a variable of the environment, or is "none".
func (e *expander) agent(value string) (string, error) {
	switch {
	case value == "" || value == "SSH_AUTH_SOCK":
		return os.Getenv("SSH_AUTH_SOCK"), nil
	case strings.EqualFold(value, "none"):
		return "", nil
	case strings.HasPrefix(value, "$") && !strings.HasPrefix(value, "${"):
		return os.Getenv(value[1:]), nil
	}
	return e.file(value)
}

// splitList splits at commas and drops empty parts.
func splitList(text string) []string {
	var all []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}

// unquote removes the quotes around a value.
func unquote(value string) string {
	value = strings.TrimSpace(value)
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		return value[1 : len(value)-1]
	}
	return value
}

// splitQuoted splits at blanks that are not between quotes.
func splitQuoted(text string) []string {
	quoted := false
	return strings.FieldsFunc(text, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && (r == ' ' || r == '\t')
	})
}
