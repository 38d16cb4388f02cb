package spell_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/spell"
)

func TestNearestGuessesOnlyWhatIsNear(t *testing.T) {
	words := []string{"address", "capacity", "max_uses", "id", "key", "REGISTRY"}
	for key, want := range map[string]string{
		"addresss":  "address",
		"Capacity":  "capacity",
		"capcaity":  "capacity",
		"max-uses":  "max_uses",
		"maximum":   "",
		"ky":        "key",
		"x":         "",
		"addresses": "address",
		"registri":  "REGISTRY",
	} {
		require.Equal(t, want, spell.Nearest(key, words), key)
	}
}

func TestANearMissIsSoughtAmongAsManyNamesAsMakesSense(t *testing.T) {
	var names []string
	for i := range 2000 {
		names = append(names, fmt.Sprintf("key%04d", i))
	}
	require.Equal(t, "key0123", spell.Nearest("kye0123", names))
	require.NotEqual(t, "key1999", spell.Nearest("kye1999", names), "the search is bounded")
	require.Empty(t, spell.Nearest(strings.Repeat("k", 65), []string{strings.Repeat("k", 64)}))
	require.Empty(t, spell.Nearest("a", []string{"b", "ab"}), "a name so short is near to everything")
}
