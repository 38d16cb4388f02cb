// Package faults holds docs/faults.md to its word: the tests it names exist.
package faults

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the module's directory.
const root = "../.."

// named is how the page names a test: the package's directory, a dot, the test.
var named = regexp.MustCompile("`([a-z/0-9]+)\\.(Test[A-Za-z0-9]+)`")

func TestEveryTestThatThePageNamesExists(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "faults.md"))
	require.NoError(t, err)
	found := named.FindAllStringSubmatch(string(page), -1)
	require.Len(t, found, strings.Count(string(page), ".Test"), "a test is named in another form than `package.TestName`")
	require.NotEmpty(t, found)
	tests := map[string]map[string]bool{} // by package
	for _, name := range found {
		pkg, test := name[1], name[2]
		if tests[pkg] == nil {
			tests[pkg] = testsOf(t, pkg)
		}
		if !tests[pkg][test] {
			t.Errorf("docs/faults.md names %s.%s, which does not exist", pkg, test)
		}
	}
}

func TestEveryFaultOfThePageHasATest(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "faults.md"))
	require.NoError(t, err)
	rows := 0
	for line := range strings.Lines(string(page)) {
		switch {
		case !strings.HasPrefix(line, "|"), strings.HasPrefix(line, "|---"), strings.HasSuffix(line, "our tests |\n"):
			continue
		}
		rows++
		require.Regexp(t, named, line)
	}
	require.Positive(t, rows)
}

// testsOf returns the tests of a package.
func testsOf(t *testing.T, pkg string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	require.NoError(t, err)
	tests := map[string]bool{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				tests[f.Name.Name] = true
			}
		}
	}
	return tests
}
