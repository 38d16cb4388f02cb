package promises

import (
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

var (
	// relativeLink is a link of a page to a file of this repository.
	relativeLink = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	// namedFunction is how architecture.md names a function: `package.Func` or `Type.Method`.
	namedFunction = regexp.MustCompile("`(?:[a-z]+\\.)?([a-zA-Z]+)\\.([a-zA-Z]+)`")
	// namedPath is how it names a directory or a file without a link.
	namedPath = regexp.MustCompile("`((?:bench|cmd|connector|instance|internal|mux|pool|remote)(?:/[a-z0-9_.]+)+)`")
)

func TestPagesLinkToFilesThatExist(t *testing.T) {
	var pages []string
	require.NoError(t, filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "testdata" || d.Name() == "bin" || d.Name() == ".git") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(file, ".md") {
			pages = append(pages, file)
		}
		return err
	}))
	require.NotEmpty(t, pages)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, match := range relativeLink.FindAllStringSubmatch(string(text), -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(page), match[1]))
			require.NoError(t, err, "a link in %s", page)
		}
	}
}

func TestArchitectureNamesCodeThatExists(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	require.NoError(t, err)
	declared := declarations(t)
	found := namedFunction.FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(found), 20)
	for _, match := range found {
		owner, name := match[1], match[2]
		if name == "md" || name == "go" || name == "yml" {
			continue
		}
		require.True(t, declared[owner+"."+name], "docs/architecture.md names %s, which does not exist", match[0])
	}
	for _, match := range namedPath.FindAllStringSubmatch(string(page), -1) {
		_, err := os.Stat(filepath.Join(root, match[1]))
		require.NoError(t, err, "docs/architecture.md names %s", match[0])
	}
}

// declarations returns the functions, methods and types of the product, as package.Name and Type.Method.
func declarations(t *testing.T) map[string]bool {
	t.Helper()
	all := make(map[string]bool)
	for _, dir := range []string{"cmd", "connector", "instance", "internal", "mux", "pool", "remote"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(file string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, decl := range parsed.Decls {
				declare(all, parsed.Name.Name, decl)
			}
			return nil
		}))
	}
	return all
}

// declare adds the names of a declaration in package pkg to all.
func declare(all map[string]bool, pkg string, decl ast.Decl) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		owner := pkg
		if d.Recv != nil {
			owner = receiver(d.Recv.List[0].Type)
		}
		all[owner+"."+d.Name.Name] = true
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			if named, ok := spec.(*ast.TypeSpec); ok {
				all[pkg+"."+named.Name.Name] = true
			}
		}
	}
}

// receiver returns the name of a receiver's type.
func receiver(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}
