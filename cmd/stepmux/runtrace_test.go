package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTracesOfBuildsHaveNamesOfTheirOwn(t *testing.T) {
	dir := t.TempDir()
	there, made := filepath.Join(dir, "there"), filepath.Join(dir, "a", "made")
	require.NoError(t, os.Mkdir(there, 0o700))
	for text, want := range map[string]string{
		"":                      "",
		there:                   there + "/{build}.trace.json",
		there + "/":             there + "/{build}.trace.json",
		made + "/":              made + "/{build}.trace.json",
		there + "/x-{build}.js": there + "/x-{build}.js",
	} {
		got, err := buildPattern(text, "trace", 2)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	require.DirExists(t, made)
	for text, says := range map[string]string{
		there + "/one.json":     "there are 2 builds",
		dir + "/{build}/t.json": "must be in the name of the file",
		dir + "/no/{build}":     "its directory",
	} {
		_, err := buildPattern(text, "trace", 2)
		require.ErrorContains(t, err, says, text)
	}
	got, err := buildPattern(there+"/one.json", "trace", 1)
	require.NoError(t, err)
	require.Equal(t, there+"/one.json", got)
}
