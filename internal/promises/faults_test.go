// Package promises checks docs/faults.md, docs/acceptance.md and docs/reliability.md: the tests that they name exist.
package promises

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

// named matches the name of a test or fuzz target on a page: the package's directory, a dot, the test.
var named = regexp.MustCompile("`([a-z/0-9]+)\\.((?:Test|Fuzz)[A-Za-z0-9]+)`")

// results matches the table of a run of fuzz targets, of which some may have gone since.
var results = regexp.MustCompile(`(?s)<!-- fuzz: .*<!-- fuzz: end -->`)

// pages are the pages that name tests. In those of tables, every row of a table must name one.
var (
	pages  = []string{"faults.md", "acceptance.md", "reliability.md", "security.md"}
	tables = []string{"faults.md", "acceptance.md"}
)

func TestEveryTestThatAPageNamesExists(t *testing.T) {
	tests := map[string]map[string]bool{} // by package
	for _, name := range pages {
		page, err := os.ReadFile(filepath.Join(root, "docs", name))
		require.NoError(t, err)
		page = results.ReplaceAll(page, nil)
		found := named.FindAllStringSubmatch(string(page), -1)
		require.Len(t, found, strings.Count(string(page), ".Test")+strings.Count(string(page), ".Fuzz"),
			"a test is named in another form than `package.TestName`")
		require.NotEmpty(t, found)
		for _, match := range found {
			pkg, test := match[1], match[2]
			if tests[pkg] == nil {
				tests[pkg] = testsOf(t, pkg)
			}
			if !tests[pkg][test] {
				t.Errorf("docs/%s names %s.%s, which does not exist", name, pkg, test)
			}
		}
	}
}

func TestEveryRowOfAPageHasATest(t *testing.T) {
	for _, name := range tables {
		page, err := os.ReadFile(filepath.Join(root, "docs", name))
		require.NoError(t, err)
		rows := 0
		for line := range strings.Lines(string(page)) {
			switch {
			case !strings.HasPrefix(line, "|"), strings.HasPrefix(line, "|---"), strings.HasSuffix(line, "tests |\n"):
				continue
			}
			rows++
			require.Regexp(t, named, line, name)
		}
		require.Positive(t, rows)
	}
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
