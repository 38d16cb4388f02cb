package component

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strings"

	"github.com/stepmux/stepmux/internal/sortedkeys"
)

// Credentials are the logins that a job may present to servers. The zero value has no logins.
type Credentials struct {
	// Logins belong to one server each. If several have the same server, the first one counts.
	Logins []Login
}

// Login is a user and a password for one server.
type Login struct {
	// Server is the scheme and host of a URL, such as https://example.com:8443, or the name of a registry, such as
	// registry.example.com. No other server gets the login.
	Server string
	// User and Password are sent unchanged.
	User, Password string
}

// FromVariables returns the credentials in the variables of a job. They are, in this order: the registries of
// DOCKER_AUTH_CONFIG; CI_JOB_TOKEN for the server of CI_SERVER_URL (or of CI_SERVER_PROTOCOL, CI_SERVER_HOST and
// CI_SERVER_PORT); for the registry CI_REGISTRY, CI_REGISTRY_USER and CI_REGISTRY_PASSWORD or else the token. variable
// returns the value of a variable, or "".
func FromVariables(variable func(name string) string) Credentials {
	var c Credentials
	c.Logins = append(c.Logins, dockerLogins(variable("DOCKER_AUTH_CONFIG"))...)
	const tokenUser = "gitlab-ci-token"
	token := variable("CI_JOB_TOKEN")
	if server := serverURL(variable); server != "" && token != "" {
		c.Logins = append(c.Logins, Login{server, tokenUser, token})
	}
	if registry := strings.TrimSuffix(variable("CI_REGISTRY"), "/"); registry != "" {
		user, password := variable("CI_REGISTRY_USER"), variable("CI_REGISTRY_PASSWORD")
		if user == "" || password == "" {
			user, password = tokenUser, token
		}
		if password != "" {
			c.Logins = append(c.Logins, Login{registry, user, password})
		}
	}
	return c
}

// serverURL returns the origin of the CI server.
func serverURL(variable func(string) string) string {
	if u, err := url.Parse(variable("CI_SERVER_URL")); err == nil && u.Host != "" {
		return Origin(u)
	}
	host, scheme := variable("CI_SERVER_HOST"), cmp.Or(variable("CI_SERVER_PROTOCOL"), "https")
	if host == "" {
		return ""
	}
	if port := variable("CI_SERVER_PORT"); port != "" && !strings.Contains(host, ":") {
		host += ":" + port
	}
	return Origin(&url.URL{Scheme: scheme, Host: host})
}

// Origin returns the scheme and host of u, without the default port.
func Origin(u *url.URL) string {
	scheme, host := strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	switch scheme {
	case "https":
		host = strings.TrimSuffix(host, ":443")
	case "http":
		host = strings.TrimSuffix(host, ":80")
	}
	return scheme + "://" + host
}

// dockerLogins returns the logins in a Docker configuration, without those of credential helpers. It returns nil if the
// configuration cannot be read.
func dockerLogins(config string) []Login {
	var parsed struct {
		Auths map[string]struct{ Auth, Username, Password string }
	}
	if json.Unmarshal([]byte(config), &parsed) != nil {
		return nil
	}
	var logins []Login
	for _, server := range sortedkeys.Of(parsed.Auths) {
		auth := parsed.Auths[server]
		user, password := auth.Username, auth.Password
		if decoded, err := base64.StdEncoding.DecodeString(auth.Auth); err == nil && auth.Auth != "" {
			user, password, _ = strings.Cut(string(decoded), ":")
		}
		if password != "" {
			logins = append(logins, Login{registryName(server), user, password})
		}
	}
	return logins
}

// registryName returns the name of a registry. server may be a URL.
func registryName(server string) string {
	if _, rest, found := strings.Cut(server, "://"); found {
		server = rest
	}
	server, _, _ = strings.Cut(server, "/")
	return server
}

// For returns the login for the server of a URL, or nil. A login in the URL itself comes first.
func (c Credentials) For(u *url.URL) *Login {
	if u.User != nil {
		password, _ := u.User.Password()
		return &Login{Origin(u), u.User.Username(), password}
	}
	return c.At(Origin(u))
}

// At returns the login for a server, or nil.
func (c Credentials) At(server string) *Login {
	for _, l := range c.Logins {
		if parsed, err := url.Parse(l.Server); l.Server == server || err == nil && parsed.Host != "" &&
			Origin(parsed) == server {
			return &l
		}
	}
	return nil
}
