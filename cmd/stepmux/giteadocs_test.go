//go:build gitea

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/giteatest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// inlineCode finds code in a line of a page, and fence a block.
var inlineCode, fence = regexp.MustCompile("`([^`]+)`"), regexp.MustCompile("(?s)```.*?```")

// codeOf returns the code in the lines of a part of a page that begins with a text.
func codeOf(part, begin string) (all []string) {
	for _, found := range inlineCode.FindAllStringSubmatch(fence.ReplaceAllString(part, ""), -1) {
		if strings.HasPrefix(found[1], begin) {
			all = append(all, found[1])
		}
	}
	return all
}

// fenced returns the only block of YAML in an item of a list.
func fenced(t *testing.T, item string) string {
	t.Helper()
	parts := strings.Split(item, "   ```")
	require.Len(t, parts, 3, "one block: %s", item)
	text, ok := strings.CutPrefix(parts[1], "yaml\n")
	require.True(t, ok)
	return strings.ReplaceAll("\n"+text, "\n   ", "\n")[1:]
}

// The first part of docs/gitea.md, word by word: its commands and files, with the URL and the paths of the test.
func TestThePageLeadsToAGreenRunOfARealGitea(t *testing.T) {
	page, err := os.ReadFile("../../docs/gitea.md")
	require.NoError(t, err)
	_, part, ok := strings.Cut(string(page), "\n## Ten minutes from nothing to a green run\n")
	require.True(t, ok)
	part, _, _ = strings.Cut(part, "\n## ")
	steps, after, ok := strings.Cut(part, "\n`stepmux ps`")
	require.True(t, ok)
	after = "`stepmux ps`" + after
	items := regexp.MustCompile(`(?m)^\d\. `).Split(steps, -1)[1:]
	require.Len(t, items, 5)

	for _, withVMs := range []bool{true, false} {
		t.Run(map[bool]string{true: "with VMs", false: "without VMs"}[withVMs], func(t *testing.T) {
			g := giteatest.Real(t)
			etc := t.TempDir()
			name := strings.NewReplacer("http://", "", ".", "-", ":", "-").Replace(g.URL)
			here := strings.NewReplacer("/etc/stepmux", etc, "/var/lib/stepmux", filepath.Join(etc, "state"),
				"https://gitea.example.com", g.URL, "gitea-example-com", name, "#3", "#1")
			socket := filepath.Join(sshtest.SocketDir(t), "m.sock")
			run := func(line string) *exec.Cmd {
				args := strings.Fields(here.Replace(line))
				require.Equal(t, "stepmux", args[0])
				cmd := exec.Command(runnertest.Manager(t), args[1:]...)
				cmd.Env = append(os.Environ(), managerVar+"="+socket)
				return cmd
			}

			command, _, _ := strings.Cut(items[0][strings.Index(items[0], "       ")+7:], "\n")
			args := strings.Fields(command)
			require.Equal(t, "gitea", args[0])
			files := codeOf(items[0], "/etc/")
			require.Len(t, files, 1)
			require.NoError(t, os.WriteFile(here.Replace(files[0]), []byte(g.Run(args[1:]...)+"\n"), 0o600))

			config := here.Replace(fenced(t, items[1]))
			if withVMs {
				newInventory(t, etc, 1)
			} else {
				require.Equal(t, []string{"inventory"}, codeOf(items[1], "inventory"))
				config = regexp.MustCompile(`(?m)^inventory: .*\n`).ReplaceAllString(config, "")
				config += strings.Join(codeOf(items[1], "capacity: "), "\n") + "\n"
				require.Contains(t, config, "capacity: 4")
			}
			require.NoError(t, os.WriteFile(filepath.Join(etc, "manager.yml"), []byte(config), 0o600))

			checks := codeOf(items[2], "stepmux ")
			require.Len(t, checks, 1)
			out, err := run(checks[0]).CombinedOutput()
			require.NoError(t, err, "%s", out)

			starts := codeOf(items[3], "stepmux ")
			require.Len(t, starts, 1)
			m := run(starts[0])
			log := filepath.Join(etc, "log")
			file, err := os.Create(log)
			require.NoError(t, err)
			defer file.Close()
			m.Stderr = file
			require.NoError(t, m.Start())
			t.Cleanup(func() {
				_ = m.Process.Kill()
				_ = m.Wait() // it was killed
			})
			says := codeOf(items[3], "registered")
			require.Len(t, says, 1)
			require.Eventually(t, func() bool {
				text, err := os.ReadFile(log)
				return err == nil && strings.Contains(string(text), says[0])
			}, bound, 20*time.Millisecond)
			require.Len(t, g.Runners(), 1, "Gitea shows the runner")

			text := fenced(t, items[4])
			path, ok := strings.CutPrefix(strings.SplitN(text, "\n", 2)[0], "# ")
			require.True(t, ok)
			r := g.Repo("demo", map[string]string{path: text})
			job := r.Ended(1)["test"]
			require.Equal(t, "success", job.Conclusion, "%q", r.Rows(job.ID))
			require.Contains(t, r.Rows(job.ID), "hello")

			shown := codeOf(after, "gitea-example-com/")
			require.Len(t, shown, 1)
			id := ""
			wants := map[string]string{
				"stepmux ps": name, "stepmux pipelines": here.Replace(shown[0]), "stepmux builds": here.Replace(shown[0]),
				"stepmux logs ID/test": "hello",
			}
			seen := map[string]bool{}
			for _, line := range codeOf(after, "stepmux ") {
				out, err := run(strings.Replace(line, "ID", id, 1)).CombinedOutput()
				require.NoError(t, err, "%s: %s", line, out)
				require.NotEmpty(t, wants[line], line)
				require.Contains(t, string(out), wants[line], line)
				if line == "stepmux pipelines" {
					id = regexp.MustCompile(`(?m)^(\S+) .*` + regexp.QuoteMeta(wants[line])).FindStringSubmatch(string(out))[1]
				}
				seen[line] = true
			}
			require.Len(t, seen, len(wants))
		})
	}
}
