package runner

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gitlab.com/gitlab-org/gitlab-runner/common"

	"github.com/stepmux/stepmux/instance/manager/gitlabdoor/runnerconfig"
)

// The command stepmux gitlab import has to know each key of a config.toml.
func TestTheKeysOfTheConfiguration(t *testing.T) {
	var keys []string
	addKeys(reflect.TypeFor[common.Config](), "", map[reflect.Type]bool{}, &keys)
	slices.Sort(keys)
	text := strings.Join(slices.Compact(keys), "\n") + "\n"
	file := filepath.FromSlash("../testdata/config-19.4.0.keys")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text)
}

// addKeys adds the keys of a struct, with those of the tables in it. A struct inside itself ends it.
func addKeys(of reflect.Type, prefix string, around map[reflect.Type]bool, keys *[]string) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Map {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || around[of] {
		return
	}
	around[of] = true
	defer delete(around, of)
	for f := range of.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name == "" && f.Anonymous:
			addKeys(f.Type, prefix, around, keys)
		case name == "":
			*keys = append(*keys, prefix+f.Name)
			addKeys(f.Type, prefix+f.Name+".", around, keys)
		default:
			*keys = append(*keys, prefix+name)
			addKeys(f.Type, prefix+name+".", around, keys)
		}
	}
}

// Each configuration that GitLab Runner's own pages and its example have can be imported, and has no unknown key.
func TestPublishedConfigurationsCanBeImported(t *testing.T) {
	at, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "gitlab.com/gitlab-org/gitlab-runner").Output()
	require.NoError(t, err)
	root := strings.TrimSpace(string(at))
	whole, err := os.ReadFile(filepath.Join(root, "config.toml.example"))
	require.NoError(t, err)
	examples := map[string]string{"config.toml.example": string(whole)}
	require.NoError(t, filepath.WalkDir(filepath.Join(root, "docs"), func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".md") {
			return err
		}
		page, err := os.ReadFile(name)
		for i, block := range blocks.FindAllStringSubmatch(string(page), -1) {
			examples[fmt.Sprintf("%s %d", filepath.Base(name), i+1)] = block[1]
		}
		return err
	}))
	imported, unknown := 0, []string{}
	for name, text := range examples {
		made, err := runnerconfig.Convert([]byte(completed(text)), "/etc/stepmux")
		if err != nil {
			t.Logf("%s: %v", name, err)
			require.ErrorContains(t, err, "line ", "%s: only what is no TOML cannot be imported:\n%s", name, text)
			continue
		}
		imported++
		for line := range strings.Lines(string(made.File)) {
			if strings.Contains(line, "does not have this key") {
				unknown = append(unknown, name+line)
			}
		}
	}
	t.Logf("%d of %d imported", imported, len(examples))
	require.Greater(t, imported, 150)
	require.Empty(t, unknown)
}

// completed makes a part of a file, as pages have it, a whole one.
func completed(text string) string {
	lines := []string{}
	for line := range strings.Lines(text) {
		if trimmed := strings.TrimSpace(line); trimmed == "[runners]" {
			line = "[[runners]]\n"
		} else if dots := strings.TrimPrefix(trimmed, "("); strings.HasPrefix(dots, "...") || strings.HasPrefix(dots, "url") {
			continue
		}
		lines = append(lines, line)
	}
	text = strings.Join(lines, "")
	switch at := strings.Index(text, "[runners."); {
	case strings.Contains(text, "[[runners]]"):
	case at >= 0:
		start := strings.LastIndexByte(text[:at], '\n') + 1
		text = text[:start] + "[[runners]]\n" + text[start:]
	case strings.Contains(text, "pre_get_sources_script"):
		text = "[[runners]]\n" + text
	default:
		text += "[[runners]]\n"
	}
	return strings.ReplaceAll(text, "[[runners]]", "[[runners]]\nurl = \"https://gitlab.example.com\"\n")
}

var blocks = regexp.MustCompile("(?s)```toml\n(.*?)```")
