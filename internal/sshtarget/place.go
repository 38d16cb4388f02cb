package sshtarget

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// place is the parsed name of a machine.
type place struct {
	user, host, port string // all but host may be empty
	literal          bool   // ssh://: ssh_config does not apply
}

const forms = "want ssh://[USER@]HOST[:PORT], or [USER@]NAME[:PORT] with a NAME of ssh_config"

// parsePlace reads ssh://[USER@]HOST[:PORT], or [USER@]NAME[:PORT].
func parsePlace(text string) (place, error) {
	p, err := place{}, error(nil)
	rest, isURL := strings.CutPrefix(text, "ssh:")
	switch {
	case strings.Contains(text, "://"):
		p, err = parseURL(text)
	case isURL && strings.ContainsAny(rest, "/@"): // it would be the user's name
		return place{}, fmt.Errorf("%q: two slashes follow ssh: %s", text, forms)
	default:
		p, err = parseName(text)
	}
	switch {
	case err != nil:
		return place{}, err
	// A program could take the text for an option, and a shell for a command.
	case strings.HasPrefix(p.host, "-") || strings.HasPrefix(p.user, "-") ||
		strings.ContainsAny(p.host+p.user, " \t\r\n'\"`$\\;&<>|(){}"):
		return place{}, fmt.Errorf("%q: no machine or user has such a name", text)
	case p.port != "":
		if err := checkPort(p.port); err != nil {
			return place{}, fmt.Errorf("%s: %w", p.host, err)
		}
	}
	return p, nil
}

// checkPort returns an error unless text is a port of TCP.
func checkPort(text string) error {
	if n, err := strconv.ParseUint(text, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("port %.40q is not a number from 1 to 65535", text)
	}
	return nil
}

func parseURL(text string) (place, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil && strings.Contains(text, "@"):
		return place{}, errors.New("this is not a URL: " + forms) // without the text, which may have a password
	case err != nil:
		return place{}, err
	case u.Scheme != "ssh" || u.Hostname() == "":
		return place{}, fmt.Errorf("%q: %s", u.Redacted(), forms)
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return place{}, fmt.Errorf("%q: nothing may follow the port", u.Redacted())
	}
	if _, secret := u.User.Password(); secret {
		return place{}, errors.New(
			"no password in the URL, everybody on this machine could read it; use --identity or an agent")
	}
	return place{user: u.User.Username(), host: u.Hostname(), port: u.Port(), literal: true}, nil
}

func parseName(text string) (place, error) {
	var p place
	rest := text
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		p.user, rest = rest[:i], rest[i+1:]
		if p.user == "" {
			return place{}, fmt.Errorf("%q: %s", text, forms)
		}
	}
	p.host = rest
	if strings.HasPrefix(rest, "[") || strings.Count(rest, ":") == 1 {
		host, port, err := net.SplitHostPort(rest)
		if err != nil || port == "" {
			return place{}, fmt.Errorf("%q: %s", text, forms)
		}
		p.host, p.port = host, port
	}
	if p.host == "" || strings.ContainsAny(p.host, "/,*?!") {
		return place{}, fmt.Errorf("%q: %s", text, forms)
	}
	return p, nil
}
