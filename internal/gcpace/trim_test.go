package gcpace

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is in a pool is garbage only after two collections, which Go makes in minutes if the program does little.
func TestTrimReturnsTheMemoryOfABurst(t *testing.T) {
	const burst = 128 << 20
	pool := &sync.Pool{}
	func() {
		var all []*[1 << 20]byte
		for range burst >> 20 {
			all = append(all, new([1 << 20]byte))
		}
		for _, one := range all {
			pool.Put(one)
		}
	}()
	held := func() uint64 {
		size, _ := heap()
		return size
	}
	require.Greater(t, held(), uint64(burst))
	ctx, cancel := context.WithCancel(t.Context())
	var trimmer sync.WaitGroup
	trimmer.Go(func() { trim(ctx, time.Millisecond) })
	defer trimmer.Wait()
	defer cancel()
	require.Eventually(t, func() bool { return held() < burst/2 }, 10*time.Second, time.Millisecond)
	require.NotNil(t, pool)
}
