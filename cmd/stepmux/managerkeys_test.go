package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/flagfile"
)

// notInFile are the flags of a manager that its file cannot have.
var notInFile = []string{"check", "config", "config-schema", "help"}

// validValues are valid values of the manager's flags whose type does not tell one.
var validValues = map[string]string{
	"add-host": "a:127.0.0.1", "bootstrap-binary": "linux/amd64=/bin/true", "build-cpus": "2", "build-memory": "1G",
	"build-pids": "100", "pids-limit": "100", "container-user": "u", "cpus": "2", "docker": "unix:///d",
	"entrypoint": "keep",
	"host-key":   "insecure", "isolation": "off", "label": "a=b", "log-format": "json", "log-level": "info",
	"memory": "1g", "network": "none", "platform": "linux/amd64", "pull": "never", "route": "relay",
	"service": "redis:7", "service-env": "A=b", "session-limit": "5", "tmpfs": "/t", "volume": "/a:/b",
	"connect-wait": "5s", "idle-timeout": "5s", "keep": "5h", "keepalive-interval": "5s", "keepalive-timeout": "5s",
	"linger": "5m", "max-age": "5h", "schedule-timeout": "5s", "service-timeout": "5s", "stop-timeout": "5s",
}

// mappings are valid values of the keys that are no texts.
var mappings = map[string]string{
	"elastic": "[{name: linux, exec: /bin/true, max-instances: 3}]",
	"gitea":   "[{url: 'https://gitea.example.com', token-file: t}]",
	"gitlab":  "[{url: 'https://gitlab.example.com', token-file: t}]",
}

func TestEachFlagOfAManagerIsAKeyOfItsFile(t *testing.T) {
	properties, ok := flagfile.Schema(newManagerCommand().Flags(), "")["properties"].(map[string]any)
	require.True(t, ok)
	newManagerCommand().Flags().VisitAll(func(f *pflag.Flag) {
		if slices.Contains(notInFile, f.Name) {
			return
		}
		value := validValues[f.Name]
		switch {
		case value != "":
		case f.Value.Type() == "bool":
			value = "true"
		case strings.HasPrefix(f.Value.Type(), "int"):
			value = "3"
		default:
			value = "text"
		}
		t.Run(f.Name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "manager.yml")
			text := fmt.Sprintf("%q", value)
			if own, ok := mappings[f.Name]; ok {
				text = own
			}
			require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "%s: %s\n", f.Name, text), 0o600))
			fl := newManagerCommand().Flags()
			require.NoError(t, flagfile.Apply(fl, file))
			require.True(t, fl.Changed(f.Name))
			require.Equal(t, f.Usage != "", properties[f.Name] != nil, "all but old names")
		})
	})
}

// The table of docs/manager.md has all keys, as the flags describe them.
func TestTheManagersPageHasEachKeyOfItsFile(t *testing.T) {
	page, err := os.ReadFile("../../docs/manager.md")
	require.NoError(t, err)
	rows := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		rows[strings.TrimSpace(line)] = true
	}
	missing := map[string]bool{}
	newManagerCommand().Flags().VisitAll(func(f *pflag.Flag) {
		_, usage := pflag.UnquoteUsage(f)
		row := fmt.Sprintf("| `%s` | %s |", f.Name, strings.ReplaceAll(usage, "|", `\|`))
		isOldName := usage == "" // of another key
		if !slices.Contains(notInFile, f.Name) && !isOldName && !rows[row] {
			missing[row] = true
		}
	})
	require.Empty(t, missing, "add to the table of keys:\n%s", strings.Join(slices.Sorted(maps.Keys(missing)), "\n"))
}

func TestAManagersHelpShowsNoMoreFlagsThanAReaderTakesIn(t *testing.T) {
	cmd := newManagerCommand()
	cmd.InitDefaultHelpFlag()
	shown := 0
	for _, s := range sections(cmd) {
		s.flags.VisitAll(func(*pflag.Flag) { shown++ })
	}
	require.LessOrEqual(t, shown, 45)
	require.True(t, slices.IsSorted(rareNames()))
	for _, name := range rareNames() {
		require.Contains(t, cmd.Long, name)
		// Symptom: the help named cpus, memory and pids-limit, and a manager warned twice about each, with other remedies.
		require.NotEmpty(t, cmd.Flags().Lookup(name).Usage, "%s is the old name of a key, which the page does not have", name)
	}
}

// A flag that became a key works in this version.
func TestAFlagThatIsAKeyWarnsOnTheCommandLine(t *testing.T) {
	cmd := newManagerCommand()
	file := filepath.Join(t.TempDir(), "manager.yml")
	require.NoError(t, os.WriteFile(file, []byte("{memory: 1g, capacity: 2}"), 0o600))
	var stderr bytes.Buffer
	cmd.SetErr(&stderr)
	cmd.SetOut(&stderr)
	cmd.SetArgs([]string{"--config", file, "--stop-timeout", "5s", "--ssh-forward", "--capacity", "3"})
	require.ErrorContains(t, cmd.Execute(), "--state is missing")
	text, _, _ := strings.Cut(stderr.String(), "Error:")
	const end = " in the file of --config\n"
	require.Equal(t, "stepmux: warning: --ssh-forward: the next version takes this only as the key ssh-forward"+end+
		"stepmux: warning: --stop-timeout: the next version takes this only as the key stop-timeout"+end, text)
}
