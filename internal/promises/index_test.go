package promises

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A page that no list names is found by nobody but its author.
func TestEveryPageAndDecisionIsInItsList(t *testing.T) {
	for _, dir := range []string{"docs", "docs/adr"} {
		list, err := os.ReadFile(filepath.Join(root, dir, "README.md"))
		require.NoError(t, err)
		listed := map[string]bool{}
		for _, match := range relativeLink.FindAllStringSubmatch(string(list), -1) {
			listed[filepath.Clean(match[1])] = true
		}
		files, err := filepath.Glob(filepath.Join(root, dir, "*.md"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			name := filepath.Base(file)
			require.True(t, name == "README.md" || listed[name], "%s/README.md does not list %s", dir, name)
		}
	}
}

// replacedBy is how a decision says that a later one replaced it.
var replacedBy = regexp.MustCompile(`(?m)^\*\*Replaced\*\* by \[decision \d+\]\(([^)]+)\)`)

func TestTheListOfDecisionsShowsWhichWereReplaced(t *testing.T) {
	list, err := os.ReadFile(filepath.Join(root, "docs", "adr", "README.md"))
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(root, "docs", "adr", "0*.md"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		title, _, _ := strings.Cut(string(text), "\n")
		_, title, _ = strings.Cut(title, ". ")
		row := regexp.MustCompile(`(?m)^.*\(` + regexp.QuoteMeta(filepath.Base(file)) + `\) \|.*$`).FindString(string(list))
		require.Contains(t, row, title)
		match := replacedBy.FindStringSubmatch(string(text))
		require.Equal(t, match != nil, strings.Contains(row, "**replaced**"), file)
		if match != nil {
			require.Contains(t, row, "**replaced** by [")
			require.Contains(t, row, match[1])
		}
	}
}

// variable is the name of a variable of tests, of scripts and of make.
var variable = regexp.MustCompile(`STEPMUX_[A-Z_]*[A-Z]`)

// products are names in tests that mean the product's own variables, streams and buckets.
var products = regexp.MustCompile(`^STEPMUX_(ARTIFACTS|COMMAND|ISOLATION|LEASE|LOGS|MANAGER|OUTSIDE_LINKS|PROJECTS|` +
	`QUEUE|SERVER|TOKEN|TEST(_.*)?)$`)

func TestEveryVariableOfTestsIsOnTheirPage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "testing.md"))
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(page), "## Variables")
	table, _, _ = strings.Cut(table, "\n`STEPMUX_TEST_...`")
	listed := map[string]bool{}
	for _, name := range variable.FindAllString(table, -1) {
		listed[name] = true
	}
	read := map[string]bool{"STEPMUX_TEST_PROGRAMS": true}
	require.NoError(t, filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && (d.Name() == "bin" || d.Name() == ".git" || d.Name() == "testdata") {
				return filepath.SkipDir
			}
			return err
		}
		path, err := filepath.Rel(root, file)
		require.NoError(t, err)
		dir := strings.Split(filepath.ToSlash(path), "/")[0]
		script := path == "Makefile" || dir == ".ci" || dir == "bench" && filepath.Ext(path) == ""
		if !script && !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "internal/testing/") {
			return nil
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, at := range variable.FindAllIndex(text, -1) {
			name := string(text[at[0]:at[1]])
			if at[0] > 0 && strings.HasSuffix(string(text[:at[0]]), "_") || products.MatchString(name) {
				continue // KV_STEPMUX_ and OBJ_STEPMUX_ begin names of streams
			}
			read[name] = true
		}
		return nil
	}))
	require.Equal(t, slices.Sorted(maps.Keys(read)), slices.Sorted(maps.Keys(listed)))
}

// The five lines of Go in the README are those of an example that compiles.
func TestTheGoOfTheREADMECompiles(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.NotEmpty(t, blocks)
	text, err := os.ReadFile(filepath.Join(root, "instance", "example_test.go"))
	require.NoError(t, err)
	for _, block := range blocks {
		for line := range strings.Lines(block[1]) {
			require.Contains(t, string(text), "\n\t"+line, "instance/example_test.go must have the line")
		}
	}
}
