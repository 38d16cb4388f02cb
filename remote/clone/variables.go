package clone

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// maxAttempts bounds GET_SOURCES_ATTEMPTS.
const maxAttempts = 10

// settings are the variables of a GitLab job about its sources. They are read from the environment.
type settings struct {
	noCheckout      bool
	clean           []string // flags of git clean; nil: the files go as Clone removes them
	fetch           []string // more flags of git fetch
	paths           []string // of submodules; all if empty
	submoduleDepth  int      // -1: that of the repository
	submoduleUpdate []string // more flags of git submodule update
	forceHTTPS      bool
	attempts        int
	sshHost         string // of the server, with forceHTTPS
	sshPort         string
	authorities     string // file of certificates that git trusts at the server, if it is not empty
}

// readSettings reads the variables. As in GitLab Runner, flags can be taken away by a word: see words.
func readSettings(env []string) (s settings, err error) {
	values := map[string]string{}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		values[name] = strings.TrimSpace(value)
	}
	number := func(name string, otherwise, low, high int) int {
		n, parseErr := strconv.Atoi(values[name])
		switch {
		case values[name] == "":
			return otherwise
		case parseErr != nil || n < low || n > high:
			err = fmt.Errorf("the variable %s is %.40q: write a number from %d to %d", name, values[name], low, high)
		}
		return n
	}
	yes := func(name string, otherwise bool) bool {
		is, parseErr := strconv.ParseBool(values[name])
		switch {
		case values[name] == "":
			return otherwise
		case parseErr != nil:
			err = fmt.Errorf("the variable %s is %.40q: write true or false", name, values[name])
		}
		return is
	}
	words := func(name string) []string {
		switch values[name] {
		case "":
			return nil
		case "none":
			return []string{}
		}
		return strings.Fields(values[name])
	}
	const maxDepth = 1 << 30
	s = settings{
		noCheckout: !yes("GIT_CHECKOUT", true), clean: words("GIT_CLEAN_FLAGS"), fetch: words("GIT_FETCH_EXTRA_FLAGS"),
		paths: words("GIT_SUBMODULE_PATHS"), submoduleDepth: number("GIT_SUBMODULE_DEPTH", -1, 0, maxDepth),
		submoduleUpdate: words("GIT_SUBMODULE_UPDATE_FLAGS"), forceHTTPS: yes("GIT_SUBMODULE_FORCE_HTTPS", false),
		attempts: number("GET_SOURCES_ATTEMPTS", 1, 1, maxAttempts),
		sshHost:  values["CI_SERVER_SHELL_SSH_HOST"], sshPort: values["CI_SERVER_SHELL_SSH_PORT"],
		authorities: values["CI_SERVER_TLS_CA_FILE"],
	}
	return s, err
}

// attempt repeats do as often as GET_SOURCES_ATTEMPTS says.
func (g *git) attempt(ctx context.Context, do func() (string, error)) (commit string, err error) {
	for n := 1; ; n++ {
		if commit, err = do(); err == nil || ctx.Err() != nil || n >= g.attempts {
			return commit, err
		}
		fmt.Fprintf(g.cfg.Output, "stepmux: %v\nattempt %d of %d\n", err, n+1, g.attempts)
	}
}

// httpsForSSH returns options by which git fetches submodules of the same server by HTTPS whose URLs are those of SSH.
func (g *git) httpsForSSH() (options []string) {
	at, err := url.Parse(g.cfg.URL)
	if !g.forceHTTPS || err != nil {
		return nil
	}
	host := at.Hostname()
	if g.sshHost != "" {
		host = g.sshHost
	}
	instead := []string{"git@" + host + ":", "ssh://git@" + host + "/"}
	if g.sshPort != "" {
		instead = append(instead, "ssh://git@"+host+":"+g.sshPort+"/")
	}
	for _, from := range instead {
		options = append(options, "-c", "url."+at.Scheme+"://"+at.Host+"/.insteadOf="+from)
	}
	return options
}
