package gitlabtest

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each kind of job is in the table of its page, and the table names no other.
func TestThePageNamesEachKindOfJob(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/gitlab.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "<!-- kinds of jobs: begin -->\n")
	require.True(t, found)
	table, _, found = strings.Cut(table, "<!-- kinds of jobs: end -->")
	require.True(t, found)
	var named, all []string
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[len(cells)-1], -1) {
			named = append(named, name[1])
		}
	}
	for _, kind := range Kinds(t, nil) {
		all = append(all, kind.Name)
	}
	require.ElementsMatch(t, all, named)
}
