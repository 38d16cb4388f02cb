package sshdoor

import (
	"testing"
	"time"
)

// SetLoginTimeout sets how long a client may take to log in by SSH, until the test ends, which must not be parallel.
func SetLoginTimeout(t *testing.T, d time.Duration) {
	before := loginTimeout
	loginTimeout = d
	t.Cleanup(func() { loginTimeout = before })
}
