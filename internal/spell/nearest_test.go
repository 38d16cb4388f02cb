package spell_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/spell"
)

func TestNearestGuessesOnlyWhatIsNear(t *testing.T) {
	words := []string{"address", "capacity", "max_uses", "id", "key"}
	for key, want := range map[string]string{
		"addresss":  "address",
		"Capacity":  "capacity",
		"capcaity":  "capacity",
		"max-uses":  "max_uses",
		"maximum":   "",
		"ky":        "key",
		"x":         "",
		"addresses": "address",
	} {
		require.Equal(t, want, spell.Nearest(key, words), key)
	}
}
