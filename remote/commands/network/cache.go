package network

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/remote/commands"
	"github.com/stepmux/stepmux/remote/step/fetch"
)

// CacheReport lists components in a cache: all of them, the removed ones, or the changed ones.
type CacheReport struct {
	Components []fetch.Cached `json:"components"`
	// Error says why the list may be incomplete.
	Error string `json:"error,omitempty"`
}

// Cache lists, prunes or verifies the cache in dir, depending on verb: see [fetch.Store]. If dir is empty, it is
// [component.DefaultDir]. prune keeps components that were used within the time unused.
func Cache(ctx context.Context, verb, dir string, unused time.Duration) CacheReport {
	r := CacheReport{}
	store, err := fetch.New(fetch.Config{Dir: dir})
	if err == nil {
		defer func() { _ = store.Close() }() // always nil
		switch verb {
		case "list":
			r.Components, err = store.List()
		case "prune":
			r.Components, err = store.Prune(ctx, unused)
		default:
			r.Components, err = store.Verify(ctx)
		}
	}
	if err != nil {
		r.Error = err.Error()
	}
	if r.Components == nil {
		r.Components = []fetch.Cached{} // [] in JSON
	}
	return r
}

func cache(fl *pflag.FlagSet) commands.Runner {
	dir := fl.String("cache-dir", "", "directory of the cache (default stepmux-steps in the user's cache directory)")
	unused := fl.Duration("unused-for", 0, "prune: keep components that were used within this time")
	return func(ctx context.Context, args []string) (int, error) {
		if len(args) != 1 || args[0] != "list" && args[0] != "prune" && args[0] != "verify" {
			return 0, fmt.Errorf("%w: cache needs list, prune or verify", commands.ErrUsage)
		}
		if *unused < 0 {
			return 0, fmt.Errorf("%w: --unused-for %v is negative", commands.ErrUsage, *unused)
		}
		r := Cache(ctx, args[0], *dir, *unused)
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			return 0, err
		}
		if r.Error != "" {
			return cmp.Or(endsignal.Code(ctx), commands.ExitFailed), nil
		}
		return 0, nil
	}
}
