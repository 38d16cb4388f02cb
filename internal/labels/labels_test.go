package labels_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/labels"
)

func TestTextIsSorted(t *testing.T) {
	require.Equal(t, "a=, os=linux, size=large", labels.Text(map[string]string{"size": "large", "os": "linux", "a": ""}))
	require.Empty(t, labels.Text(nil))
}
