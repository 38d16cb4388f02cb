package innerport

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
)

// maxConns bounds the connections of a Door at a time. Further ones wait.
const maxConns = 64

// Door is a unix socket whose connections go on to an address. It is safe for concurrent use.
type Door struct {
	listener net.Listener
	dir      *os.File
	end      context.CancelFunc
	wg       sync.WaitGroup // all goroutines, which end with Close
}

// Open makes a socket at path, from which connections go on to address, HOST:PORT.
func Open(path, address string) (*Door, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	// The path of a socket is short, and that of a job's directory may be long.
	short := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	listener, err := net.Listen("unix", short)
	if err != nil {
		dir.Close()
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	d := &Door{listener: listener, dir: dir, end: end}
	d.wg.Go(func() {
		serve(ctx, &d.wg, listener, func() (net.Conn, error) { return net.Dial("tcp", address) })
	})
	return d, nil
}

// Close removes the socket and ends its connections.
func (d *Door) Close() {
	d.end()
	_ = d.listener.Close() // it removes the socket
	d.wg.Wait()
	d.dir.Close()
}

// serve carries each connection of a listener to one that dial returns, until the listener is closed and ctx ends.
func serve(ctx context.Context, wg *sync.WaitGroup, listener net.Listener, dial func() (net.Conn, error)) {
	slots := make(chan struct{}, maxConns)
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			conn.Close()
			return
		}
		wg.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			to, err := dial()
			if err != nil {
				return
			}
			defer to.Close()
			carry(ctx, conn, to)
		})
	}
}

// carry copies between two connections until both directions have ended, or ctx has.
func carry(ctx context.Context, a, b net.Conn) {
	defer context.AfterFunc(ctx, func() { a.Close(); b.Close() })()
	var other sync.WaitGroup
	other.Go(func() { pass(a, b) })
	pass(b, a)
	other.Wait()
}

// pass copies from one connection to another, and then its end.
func pass(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil { // the other direction has no use, too
		from.Close()
		to.Close()
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // it may be closed
	}
}
