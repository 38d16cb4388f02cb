package component

import (
	"os"
	"path/filepath"
	"strconv"
)

// DefaultDir returns the default directory of the cache: stepmux-steps in the user's cache directory ($XDG_CACHE_HOME
// or ~/.cache) or, if the user has no such directory, stepmux-cache-<uid> in the temporary directory.
func DefaultDir() string {
	if dir, err := os.UserCacheDir(); err == nil && filepath.IsAbs(dir) {
		return filepath.Join(dir, "stepmux-steps")
	}
	return filepath.Join(os.TempDir(), "stepmux-cache-"+strconv.Itoa(os.Geteuid()))
}
