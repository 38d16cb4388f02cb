package seal_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/manager/seal"
)

func TestASealedTextOpensWithTheSameKeyForTheSameUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "key")
	require.NoError(t, seal.CheckKey(file, dir))
	require.NoFileExists(t, file)
	key, err := seal.OpenKey(file)
	require.NoError(t, err)
	again, err := seal.OpenKey(file)
	require.NoError(t, err)
	sealed := key.Seal("use", []byte("text"))
	text, err := again.Open("use", sealed)
	require.NoError(t, err)
	require.Equal(t, "text", string(text))
	require.Equal(t, key.Secret("1-a"), again.Secret("1-a"))
	require.NotEqual(t, key.Secret("1-a"), key.Secret("1-b"))

	other, err := seal.OpenKey(filepath.Join(dir, "other"))
	require.NoError(t, err)
	for _, open := range []func() ([]byte, error){
		func() ([]byte, error) { return again.Open("another use", sealed) },
		func() ([]byte, error) { return other.Open("use", sealed) },
		func() ([]byte, error) { return key.Open("use", sealed[:len(sealed)-1]) },
		func() ([]byte, error) { return key.Open("use", sealed[:3]) },
	} {
		_, err := open()
		require.Error(t, err)
	}
	require.NoError(t, os.WriteFile(file, make([]byte, 31), 0o600))
	require.ErrorContains(t, seal.CheckKey(file, dir), "is not a file of 32 bytes")
	_, err = seal.OpenKey(file)
	require.ErrorContains(t, err, "is not a file of 32 bytes")
}
