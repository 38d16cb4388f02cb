package spell_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/spell"
)

//stepmux:faults users | A wrong guess, or a flag that is blamed for the mistake of another
//stepmux:with cmd/stepmux.TestScripts
func TestNearestGuessesOnlyNearWords(t *testing.T) {
	words := []string{"address", "capacity", "max_uses", "id", "key", "Build-App", "pull", "labels"}
	for key, want := range map[string]string{
		"addresss":  "address",
		"Capacity":  "capacity",
		"capcaity":  "capacity",
		"max-uses":  "max_uses",
		"maximum":   "",
		"ky":        "key",
		"x":         "",
		"addresses": "address",
		"build_ap":  "Build-App",
		"all":       "", // pull: two of three letters
		"full":      "pull",
		"fill":      "",
		"lable":     "labels",
		"ib":        "",
	} {
		require.Equal(t, want, spell.Nearest(key, words), key)
	}
}

func TestNearestComparesABoundedNumberOfWords(t *testing.T) {
	var words []string
	for i := range 2000 {
		words = append(words, fmt.Sprintf("key%04d", i))
	}
	require.Equal(t, "key0123", spell.Nearest("kye0123", words))
	require.NotEqual(t, "key1999", spell.Nearest("kye1999", words))
	require.Empty(t, spell.Nearest(strings.Repeat("k", 65), []string{strings.Repeat("k", 64)}))
	require.Empty(t, spell.Nearest("a", []string{"b", "ab"}), "a name so short is near to everything")
}
