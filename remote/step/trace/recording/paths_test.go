package recording

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/trace"
)

func somePaths() Paths {
	var p Paths
	p.Add("/tmp/job/1", trace.TempDir)
	p.Add("/tmp/job/1/step-7", trace.StepDir)
	p.Add("/home/me/project", trace.WorkDir)
	p.Add("/real/project", trace.WorkDir)
	p.Add("/cache/comp/ab", trace.CacheDir+"/ab")
	p.Add("/", "@root")
	p.Add("relative", "@relative")
	return p
}

func TestPathsStandAsMarkers(t *testing.T) {
	p := somePaths()
	for text, want := range map[string]string{
		"/home/me/project":             "@work",
		"/home/me/project/x":           "@work/x",
		"/home/me/projects":            "/home/me/projects",
		"/home/me/project.bak":         "/home/me/project.bak",
		"-I/home/me/project/include":   "-I@work/include",
		"a=/home/me/project:/x":        "a=@work:/x",
		"/real/project/y":              "@work/y",
		". /tmp/job/1/script":          ". @tmp/script",
		"/tmp/job/1/step-7/output":     "@step/output",
		"/tmp/job/1/step-70/output":    "@tmp/step-70/output",
		"/cache/comp/ab/steps":         "@cache/ab/steps",
		"@/home/me/project/data":       "@@work/data",
		"write to me@workshop.example": "write to me@workshop.example",
		"@work/x":                      "@:work/x",
		"@::step":                      "@:::step",
		"":                             "",
	} {
		require.Equal(t, want, p.Mark(text))
		if !strings.Contains(text, "/real/") {
			require.Equal(t, text, p.Expand(p.Mark(text)))
		}
	}
	require.Equal(t, "/home/me/project/y", p.Expand(p.Mark("/real/project/y")), "the first path of a marker")
	require.Equal(t, "@cache/zz/x", p.Expand("@cache/zz/x"), "nobody knows that one")
}

func FuzzPathsAreUndone(f *testing.F) {
	f.Add("/home/me/project@:work/tmp/job/1/step-7@@step")
	f.Add("@work@/home/me/project")
	p := somePaths()
	p.known = slices.DeleteFunc(p.known, func(k known) bool { return k.other })
	f.Fuzz(func(t *testing.T, text string) {
		require.Equal(t, text, p.Expand(p.Mark(text)))
	})
}
