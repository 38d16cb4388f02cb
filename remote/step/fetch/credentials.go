package fetch

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// Credentials are what a job may present to servers. The zero value is none.
type Credentials struct {
	// Logins are tried where they belong; of several the first.
	Logins []Login
}

// Login is a user and a password for one server.
type Login struct {
	// Server is the beginning of a URL, scheme and host, such as https://example.com:8443: the login is presented there
	// and nowhere else. For a registry it is its name alone, such as registry.example.com.
	Server string
	// User and Password are presented as they are.
	User, Password string
}

// FromVariables returns the credentials that the variables of a job hold: CI_JOB_TOKEN for the server of CI_SERVER_URL
// (or of CI_SERVER_PROTOCOL, CI_SERVER_HOST and CI_SERVER_PORT), CI_REGISTRY_USER and CI_REGISTRY_PASSWORD, or else
// the token, for the registry CI_REGISTRY, and those of registries in DOCKER_AUTH_CONFIG, which come first. variable
// returns the value of a variable, empty if there is none.
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
		return origin(u)
	}
	host, scheme := variable("CI_SERVER_HOST"), variable("CI_SERVER_PROTOCOL")
	if host == "" {
		return ""
	}
	if scheme == "" {
		scheme = "https"
	}
	if port := variable("CI_SERVER_PORT"); port != "" && !strings.Contains(host, ":") {
		host += ":" + port
	}
	return origin(&url.URL{Scheme: scheme, Host: host})
}

// origin returns the scheme and host of u, without the port if it is the usual one.
func origin(u *url.URL) string {
	scheme, host := strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	switch scheme {
	case "https":
		host = strings.TrimSuffix(host, ":443")
	case "http":
		host = strings.TrimSuffix(host, ":80")
	}
	return scheme + "://" + host
}

// dockerLogins reads what is not secret-store specific of a Docker configuration. One that cannot be read has none.
func dockerLogins(config string) []Login {
	var parsed struct {
		Auths map[string]struct{ Auth, Username, Password string }
	}
	if json.Unmarshal([]byte(config), &parsed) != nil {
		return nil
	}
	var logins []Login
	for _, server := range slices.Sorted(maps.Keys(parsed.Auths)) {
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

// registryName returns the name of a registry that may be written as a URL.
func registryName(server string) string {
	if _, rest, found := strings.Cut(server, "://"); found {
		server = rest
	}
	server, _, _ = strings.Cut(server, "/")
	return server
}

// forURL returns the login for u: that in u itself, or that of its server. It is nil if there is none.
func (c Credentials) forURL(u *url.URL) *Login {
	if u.User != nil {
		password, _ := u.User.Password()
		return &Login{origin(u), u.User.Username(), password}
	}
	return c.at(origin(u))
}

// at returns the login for a server.
func (c Credentials) at(server string) *Login {
	for _, l := range c.Logins {
		if parsed, err := url.Parse(l.Server); l.Server == server || err == nil && parsed.Host != "" &&
			origin(parsed) == server {
			return &l
		}
	}
	return nil
}

// header is the login as the value of an Authorization header.
func (l *Login) header() string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(l.User+":"+l.Password))
}
