//go:build gitea

package giteadoor

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/giteatest"
)

var update = flag.Bool("update", false, "write the conversation with Gitea")

// With -update it is written.
func TestTheConversationIsThatWithARealGitea(t *testing.T) {
	g := giteatest.Real(t)
	var r *giteatest.Repo
	calls := converse(t, spoken{
		url: g.URL, token: g.RegistrationToken,
		add: func() {
			if r == nil {
				r = g.Repo("spoken", nil)
			}
			r.Push(map[string]string{".gitea/workflows/ci.yml": spokenJob, "of": fmt.Sprint(len(r.Runs()))})
		},
		cancel: func() {
			all := r.Runs()
			r.Cancel(all[len(all)-1].ID)
		},
	})
	if *update {
		require.NoError(t, os.WriteFile(recorded, []byte(lines(t, calls)), 0o600))
	}
	want, err := os.ReadFile(recorded)
	require.NoError(t, err)
	require.Equal(t, string(want), lines(t, calls))
}
