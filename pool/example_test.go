package pool_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/stepmux/stepmux/pool"
)

// link is a net.Conn that says when it has ended, as pool.Conn asks.
type link struct {
	net.Conn
	done chan struct{} // closed once err is set
	once sync.Once
	err  error
}

func (l *link) Done() <-chan struct{} { return l.done }

func (l *link) Err() error {
	select {
	case <-l.done:
		return l.err
	default:
		return nil
	}
}

func (l *link) Close() error {
	l.once.Do(func() { l.err = net.ErrClosed; close(l.done) })
	return l.Conn.Close()
}

// Three builds on one machine share one connection.
func Example() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ln.Close()
	addresses := map[pool.Key]string{"i-0a1b2c": ln.Addr().String()}

	p := pool.New(pool.Config[*link]{
		Dial: func(ctx context.Context, key pool.Key) (*link, error) {
			addr, ok := addresses[key]
			if !ok {
				return nil, errors.New("no such machine")
			}
			var d net.Dialer
			nc, err := d.DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, err
			}
			return &link{Conn: nc, done: make(chan struct{})}, nil
		},
	})

	ctx := context.Background()
	var builds sync.WaitGroup
	for range 3 {
		builds.Go(func() {
			lease, err := p.Acquire(ctx, "i-0a1b2c")
			if err != nil {
				fmt.Println(err)
				return
			}
			defer lease.Release()
			// lease.Conn() carries the build, beside the other builds'.
		})
	}
	builds.Wait()
	fmt.Println("dials:", p.Stat().Dials)
	fmt.Println("shutdown:", p.Shutdown(ctx))
	// Output:
	// dials: 1
	// shutdown: <nil>
}
