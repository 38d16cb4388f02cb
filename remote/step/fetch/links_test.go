package fetch

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
)

// manyParts returns links of which each leads by a path of 4 KB to the next, and the parts of all their paths.
func manyParts(links int) (map[string]string, int) {
	all, parts := map[string]string{}, 0
	for i := range links {
		all[strconv.Itoa(i)] = strings.Repeat("./", 2000) + strconv.Itoa(i+1)
		parts += 1 + 2001*min(links-i, maxLinks) // after the last one Linux gives up
	}
	return all, parts
}

// Symptom: a small archive with 200,000 such links took minutes of processor time, and could not be stopped.
//
//stepmux:faults fetch | The symbolic links of a small archive take minutes of processor time
//stepmux:with remote/step/fetch.TestLinksThatLeadByTooManyPartsAreRefused
func TestPartsOfThePathsOfLinksAreBounded(t *testing.T) {
	all, parts := manyParts(60)
	w := linkWalk{links: all, limit: maxParts}
	require.NoError(t, w.check(t.Context()))
	require.Equal(t, parts, w.parts, "each link is followed as far as Linux does")
	w = linkWalk{links: all, limit: parts - 1}
	require.ErrorContains(t, w.check(t.Context()), fmt.Sprintf("through more than %d path elements", parts-1))

	all, parts = manyParts(200)
	require.Greater(t, parts, maxParts)
	w = linkWalk{links: all, limit: maxParts}
	require.ErrorContains(t, w.check(t.Context()), "more than 10000000 path elements")
	require.Equal(t, maxParts+1, w.parts)

	ctx, cancel := context.WithCancelCause(t.Context())
	ended := errors.New("ended")
	cancel(ended)
	w = linkWalk{links: all, limit: maxParts}
	require.ErrorIs(t, w.check(ctx), ended)
	require.Zero(t, w.parts)
}

// Symptom: the same archive was refused with another error each time.
func TestOfSeveralBadLinksTheFirstByNameIsReported(t *testing.T) {
	links := map[string]string{}
	for i := range 50 {
		links[fmt.Sprintf("link-%02d", i)] = ".."
	}
	require.ErrorContains(t, checkLinks(t.Context(), links, maxParts), `write "link-00": `)
}

// Symptom: 200,000 links with long paths and targets, a layer of a few MB, took a GB of memory.
func TestLongPathsAndTargetsAreRefusedBeforeTheyTakeMemory(t *testing.T) {
	long := strings.Repeat("x", 240)
	for name, add := range map[string]func(w *treeWriter, i int) error{
		"paths": func(w *treeWriter, i int) error {
			return w.file(strings.Repeat(long+"/", 3)+long+strconv.Itoa(i), false, strings.NewReader(""))
		},
		"targets": func(w *treeWriter, i int) error {
			return w.symlink(strconv.Itoa(i), strings.NewReader(strings.Repeat("x", maxTarget)))
		},
		"whiteouts": func(w *treeWriter, i int) error {
			var b bytes.Buffer
			name := strings.Repeat(long+"/", 3) + whiteout + strings.Repeat("x", 200) + strconv.Itoa(i)
			require.NoError(t, tar.NewWriter(&b).WriteHeader(&tar.Header{Name: name, Format: tar.FormatPAX}))
			return (&flattener{w: w, above: map[string]cover{}}).layer(tar.NewReader(&b))
		},
	} {
		w, err := newTreeWriter(filepath.Join(fetchtest.CacheDir(t), "tree"), defaultLimits(defaultMaxBytes))
		require.NoError(t, err)
		defer w.close()
		n := 0
		for ; err == nil && n < 2000; n++ {
			err = add(w, n)
		}
		require.ErrorContains(t, err, "the paths and links are longer than 256 bytes on average", name)
		require.Greater(t, n, 200, name)
	}
}

func TestLinksThatLeadByTooManyPartsAreRefused(t *testing.T) {
	s := newStore(t)
	s.limits.parts = 4
	for target, want := range map[string]string{
		"b/../a": "", "b/../b/../a": "the symbolic links of the tree resolve through more than 4 path elements",
		strings.Repeat("x", 600) + "/" + strings.Repeat("x", 600): "more than 1024 bytes",
	} {
		archive := zipFile(t, fetchtest.Files{"a": {Content: "x"}, "b/c": {Content: "y"}, "l": {Symlink: target}})
		if want == "" {
			require.Equal(t, "x", read(t, get(t, s, archive), "l"))
			continue
		}
		require.Contains(t, refused(t, s, archive), want)
	}
}
