// Package promises writes the tables of docs/faults.md, docs/acceptance.md and docs/reliability.md from lines above the
// tests, and checks that the tests and files that pages name exist. After a change of such a line, run
//
//	go test ./internal/promises -update
//
// A row is in the doc comment of its first test. It names the page and the section, then the cells:
//
//	//stepmux:faults engine | A fault that another step runner has
//	//stepmux:more the rest of a long row
//	//stepmux:with mux.TestThatIsAlsoOfThisRow, pool.TestThatIsAlsoOfThisRow
package promises

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the module's directory.
const root = "../.."

var update = flag.Bool("update", false, "write the tables of the pages")

// row is a row of a page's table.
type row struct {
	page, section string
	cells         string   // without the last one
	tests         []string // package.TestName
}

func (r row) String() string {
	return fmt.Sprintf("| %s | `%s` |\n", r.cells, strings.Join(r.tests, "`, `"))
}

// mark begins each line of a row.
const mark = "//stepmux:"

var (
	// first matches the first line of a row, after the mark.
	first = regexp.MustCompile(`^([a-z]+) ([a-z]+) \| (.+)$`)
	// block matches a table that is written here: its beginning, section, head and rows.
	block = regexp.MustCompile(`(?s)(<!-- tests ([a-z]+): written by go test \./internal/promises -update -->\n\n` +
		`\|[^\n]*\n\|[-|]*\n)(.*?)\n<!-- tests: end -->`)
	// named matches the name of a test or fuzz target on a page: the package's directory, a dot, the test.
	named = regexp.MustCompile("`([a-z/0-9]+)\\.((?:Test|Fuzz)[A-Za-z0-9]+)`")
	// results matches the table of a run of fuzz targets, of which some may have gone since.
	results = regexp.MustCompile(`(?s)<!-- fuzz: .*<!-- fuzz: end -->`)
)

// pages are the pages that name tests. The tables of written are written here.
var (
	pages   = []string{"faults", "acceptance", "reliability", "security", "pipelines"}
	written = []string{"faults", "acceptance", "reliability"}
)

func TestTablesOfPagesAreTheLinesAboveTheTests(t *testing.T) {
	tables := map[string]string{} // by page and section
	seen := map[string]bool{}
	for _, r := range rows(t) {
		text := r.page + " " + r.section + " | " + r.cells
		require.False(t, seen[text], "two rows say %q: name the tests of both in one", text)
		seen[text] = true
		tables[r.page+" "+r.section] += r.String()
		if r.section == "mechanisms" {
			_, file, _ := strings.Cut(r.cells, " | ")
			require.FileExists(t, filepath.Join(root, strings.Trim(file, "`")), text)
		}
	}
	for _, page := range written {
		path := filepath.Join(root, "docs", page+".md")
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		want := block.ReplaceAllStringFunc(string(text), func(was string) string {
			part := block.FindStringSubmatch(was)
			section := page + " " + part[2]
			require.NotEmpty(t, tables[section], "no line above a test is of this section: %s", section)
			table := part[1] + tables[section] + "\n<!-- tests: end -->"
			delete(tables, section)
			return table
		})
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
			continue
		}
		require.Equal(t, want, string(text), "run: go test ./internal/promises -update")
		byHand := results.ReplaceAllString(block.ReplaceAllString(want, ""), "")
		require.NotRegexp(t, `(?m)^\|.*`+named.String(), byHand, "docs/%s.md: a row that is not above a test", page)
	}
	require.Empty(t, tables, "sections that no page has")
}

// rows returns the rows above all tests, in the order of their packages and files.
func rows(t *testing.T) (all []row) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "bin" || d.Name() == ".git" || d.Name() == "testdata") {
			return orSkip(err)
		}
		if !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), "\n"+mark) {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		lines := 0
		for _, decl := range parsed.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Doc == nil {
				continue
			}
			of, n := rowsOf(t, filepath.ToSlash(pkg)+"."+f.Name.Name, f.Doc)
			all, lines = append(all, of...), lines+n
		}
		require.Equal(t, strings.Count(string(text), "\n"+mark), lines, "%s: a line is not above a test", file)
		return nil
	}))
	return all
}

// orSkip returns err, or else an error for WalkDir to skip a directory.
func orSkip(err error) error {
	if err != nil {
		return err
	}
	return filepath.SkipDir
}

// rowsOf returns the rows of a test's comment, and how many lines of it they have.
func rowsOf(t *testing.T, test string, doc *ast.CommentGroup) (all []row, lines int) {
	t.Helper()
	for _, c := range doc.List {
		if !strings.HasPrefix(c.Text, mark) {
			continue
		}
		lines++
		line := strings.TrimPrefix(c.Text, mark)
		more, isMore := strings.CutPrefix(line, "more ")
		also, isWith := strings.CutPrefix(line, "with ")
		if !isMore && !isWith {
			m := first.FindStringSubmatch(line)
			require.NotNil(t, m, "%s: %s", test, c.Text)
			all = append(all, row{page: m[1], section: m[2], cells: m[3], tests: []string{test}})
			continue
		}
		require.NotEmpty(t, all, "%s: %s", test, c.Text)
		r := &all[len(all)-1]
		if isMore {
			r.cells += " " + more
		} else {
			r.tests = append(r.tests, strings.Split(also, ", ")...)
		}
	}
	return all, lines
}

func TestEveryTestThatAPageNamesExists(t *testing.T) {
	tests := map[string]map[string]bool{} // by package
	for _, name := range pages {
		page, err := os.ReadFile(filepath.Join(root, "docs", name+".md"))
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
				t.Errorf("docs/%s.md names %s.%s, which does not exist", name, pkg, test)
			}
		}
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
