package runnerconfig

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/internal/sortedkeys"
)

// text passes a value that is a text to do.
func text(do func(c *conversion, text string)) rule {
	return rule{do: func(c *conversion, key string, value any) {
		if t, is := value.(string); is {
			do(c, t)
			return
		}
		c.fail(key, "a text", value)
	}}
}

// number passes a value that is a number from 1 on to do.
func number(do func(c *conversion, n int)) rule {
	return rule{do: func(c *conversion, key string, value any) {
		switch n, is := value.(int64); {
		case !is:
			c.fail(key, "a number", value)
		case n > 0 && n < 1<<31:
			do(c, int(n))
		case n > 0:
			c.fail(key, "a smaller number", n)
		}
	}}
}

// list passes a value that is a text or a list of texts to do.
func list(do func(c *conversion, key string, all []string)) rule {
	return rule{do: func(c *conversion, key string, value any) {
		if all, is := texts(value); is {
			do(c, key, all)
			return
		}
		c.fail(key, "a list of texts", value)
	}}
}

func texts(value any) (all []string, is bool) {
	switch v := value.(type) {
	case string:
		return []string{v}, true
	case []any:
		for _, item := range v {
			t, is := item.(string)
			if !is {
				return nil, false
			}
			all = append(all, t)
		}
		return all, true
	}
	return nil, false
}

// sets sets a key of the manager's file to a text.
func sets(key string) rule {
	return text(func(c *conversion, t string) { c.set(key, t) })
}

// setsList sets a key of the manager's file to a list.
func setsList(key string) rule {
	return list(func(c *conversion, _ string, all []string) { c.set(key, all) })
}

// ignored is a key that another one's rule reads.
var ignored = rule{do: func(*conversion, string, any) {}}

// setsFile sets a key of the manager's file to a list of one file.
func setsFile(key string) rule {
	return text(func(c *conversion, t string) { c.set(key, []string{t}) })
}

// table is a table whose keys are converted, for some executors or for all.
func table(executors ...string) rule { return rule{executors: executors} }

// environment reads NAME=VALUE.
func environment(c *conversion, key string, all []string) {
	c.current.environment = map[string]string{}
	for i, text := range all {
		name, value, is := strings.Cut(text, "=")
		if !is || name == "" { // the text may be a secret
			c.fail(fmt.Sprintf("the element %d of %s", i+1, key), "NAME=VALUE", "something else")
			return
		}
		c.current.environment[name] = value
	}
	c.note("environment: here it is that of the steps, and $ has no meaning in it")
}

// listen sets the address of the metrics.
func listen(c *conversion, address string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		c.fail("listen_address", "HOST:PORT", address)
		return
	}
	if ip := net.ParseIP(host); host == "" || host == "localhost" || ip != nil && ip.IsLoopback() {
		c.set("metrics", net.JoinHostPort(host, port))
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		c.note("listen_address: metrics are for this machine alone; for other machines use http-listen with token-file, " +
			"whose /metrics needs the token. The names of the metrics are others: docs/fleet.md")
	}
}

// level sets the level of the log.
func level(c *conversion, name string) {
	switch name {
	case "debug", "info", "warn", "error":
		c.set("log-level", name)
	case "warning":
		c.set("log-level", "warn")
	case "fatal", "panic":
		c.set("log-level", "error")
	default:
		c.fail("log_level", "debug, info, warn, error, fatal or panic", name)
	}
}

// mounts sets the volumes.
func mounts(c *conversion, key string, all []string) {
	volumes := []string{}
	for _, text := range all {
		source, rest, is := strings.Cut(text, ":")
		target, options, _ := strings.Cut(rest, ":")
		switch {
		case !is:
			c.note(fmt.Sprintf("%s: %s, which is a volume without a name, is not needed: caches come from the manager", key,
				text))
		case source == "/var/run/docker.sock":
			volumes = append(volumes, text)
			c.note(key + ": with the socket of the Docker daemon a job is root on its VM")
		case target == "" || options != "" && options != "ro" && options != "rw":
			c.note(fmt.Sprintf("%s: %s has options other than ro", key, text))
		default:
			volumes = append(volumes, strings.TrimSuffix(text, ":rw"))
		}
	}
	if len(volumes) > 0 {
		c.set("volume", volumes)
	}
}

// inMemory sets the file systems in memory.
var inMemory = rule{do: func(c *conversion, key string, value any) {
	all, is := value.(map[string]any)
	if !is {
		c.fail(key, "a table of paths and options", value)
		return
	}
	mounts := []string{}
	for _, at := range sortedkeys.Of(all) {
		mounts = append(mounts, strings.TrimSuffix(fmt.Sprintf("%s:%v", at, all[at]), ":"))
	}
	c.set("tmpfs", mounts)
}}

// pulls sets when images are pulled.
func pulls(c *conversion, key string, all []string) {
	first := strings.ToLower(all[0])
	if first == "ifnotpresent" {
		first = "if-not-present"
	}
	switch first {
	case "always", "never", "if-not-present":
		c.set("pull", first)
	default:
		c.fail(key, "always, if-not-present or never", all[0])
	}
	if len(all) > 1 {
		c.note(key + ": only the first one counts here")
	}
}

// services sets the services of each job.
var services = rule{do: func(c *conversion, key string, value any) {
	all, is := value.([]map[string]any)
	if !is {
		c.fail(key, "tables, [[runners.docker.services]]", value)
		return
	}
	named := []string{}
	for _, s := range all {
		name, _ := s["name"].(string)
		alias, _ := s["alias"].(string)
		if name == "" {
			c.fail(key, "a name for each", "without one")
			return
		}
		if alias != "" {
			name = strings.FieldsFunc(alias, func(r rune) bool { return r == ' ' || r == ',' })[0] + "=" + name
		}
		named = append(named, name)
		for _, inner := range []string{"command", "entrypoint", "environment", "suspend_data_path"} {
			if !isEmpty(s[inner]) {
				c.note(fmt.Sprintf("%s.%s: write it to the service in the job (service-env is for all services)", key, inner))
			}
		}
	}
	c.set("service", named)
}}

// processors sets the limit of processors, which a cluster writes as 500m, too.
func processors(c *conversion, amount string) {
	if milli, is := strings.CutSuffix(amount, "m"); is {
		n, err := strconv.ParseUint(milli, 10, 31)
		if err != nil || n == 0 {
			c.fail("cpu_limit", "a number of processors, such as 500m", amount)
			return
		}
		amount = strconv.FormatFloat(float64(n)/1000, 'f', -1, 64)
	}
	c.set("build-cpus", amount)
}

// memory sets the limit of memory, which a cluster writes as 512Mi, too.
func memory(c *conversion, amount string) {
	c.set("build-memory", strings.TrimSuffix(strings.TrimSuffix(amount, "i"), "I"))
}
