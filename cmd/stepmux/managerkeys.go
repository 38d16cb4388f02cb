package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/flagfile"
)

// rareKeys are the keys of a manager's --config that are no flags any more. On the command line they work in this
// version, with a warning.
const rareKeys = `add-host, bootstrap-binary, connect-wait, container-user, elastic, entrypoint, gitea,
identity-command, idle-timeout, init-image, keep-files, keep-logs, keepalive-interval,
keepalive-timeout, label, max-age, nats, nats-ca, nats-cert, nats-creds, nats-key, network,
passphrase-command, platform, read-only, schedule-timeout, service-env, service-timeout,
session-limit, ssh-authorized-keys, ssh-forward, ssh-listen, stop-timeout, strict-scripts,
tls-cert, tls-key, tmpfs`

// rareNames returns the names in rareKeys.
func rareNames() []string { return strings.Fields(strings.ReplaceAll(rareKeys, ",", " ")) }

// applyKeys sets flags from the file of --config, unless it is empty. It warns of flags on the command line that are
// keys of the file.
func applyKeys(fl *pflag.FlagSet, file string, warnings io.Writer) error {
	for _, name := range flagfile.Given(fl) {
		fmt.Fprintf(warnings, "stepmux: warning: --%s: the next version takes this only as the key %s in the file of "+
			"--config\n", name, name)
	}
	if file == "" {
		return nil
	}
	return flagfile.Apply(fl, file)
}
