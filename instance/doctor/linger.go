package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// logindScript prints the settings by which logind (systemd) ends a user's processes after the last session, and the
// user.
const logindScript = `for p in KillUserProcesses KillOnlyUsers KillExcludeUsers; do
	echo "$p $(busctl get-property org.freedesktop.login1 /org/freedesktop/login1 \
		org.freedesktop.login1.Manager $p 2>/dev/null)"
done
echo "user $(id -un)"`

// linger checks whether builds can outlive their connection, on an instance that is configured for that.
func (e *examination) linger(ctx context.Context) {
	if e.in.Linger <= 0 {
		return
	}
	out, err := e.run(ctx, "sh", "-c", logindScript)
	if err == nil && out.err != nil {
		err = fmt.Errorf("%w: %s", out.err, first(out.stderr))
	}
	if err != nil {
		e.report.add(warning(checkLinger, "logind could not be asked: "+err.Error(), "", ""))
		return
	}
	facts := map[string]string{}
	for line := range strings.Lines(out.stdout) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		facts[key] = value
	}
	e.report.add(judgeLinger(e.in.Linger.String(), facts))
}

// judgeLinger judges logind's properties, as busctl prints them: see logind.conf(5). Without logind they are empty.
func judgeLinger(linger string, facts map[string]string) Finding {
	user := facts["user"]
	// busctl prints a list as: as 2 "root" "ci".
	in := func(list string) bool { return slices.Contains(strings.Fields(facts[list]), `"`+user+`"`) }
	only := strings.HasPrefix(facts["KillOnlyUsers"], "as ") && facts["KillOnlyUsers"] != "as 0"
	if facts["KillUserProcesses"] != "b true" || in("KillExcludeUsers") || only && !in("KillOnlyUsers") {
		return okay(checkLinger, "builds can outlive their connection for "+linger)
	}
	return warning(checkLinger, "systemd kills the processes of "+first(user)+" when the connection ends",
		"set KillUserProcesses=no in /etc/systemd/logind.conf, or add the user to KillExcludeUsers there, "+
			"and run systemctl restart systemd-logind",
		"builds outlive their connection, as linger: in the inventory says")
}
