package connector

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// Services are the services for the artifacts and caches of a job's actions. The job reaches them by a port on the
// loopback interface of its own machine or container. Other users of a VM reach that port too: the token is the guard.
type Services struct {
	// Token is the job's token: 16 to 4096 characters of A-Z a-z 0-9 . _ -. It is masked in the job's output.
	Token string
	// Server is the URL of a Gitea server that has the artifacts, with the same Token; the port then has the caches alone.
	// It may be empty.
	Server string
	// Relayed says that the job reaches Server through the port: Take answers requests for it, too, and those of a client
	// of HTTP for which the port is the proxy.
	Relayed bool
	// Take takes a connection that a process has made to the port, and has it closed. At most 128 are open at a time. It
	// is called from several goroutines. The bytes are untrusted.
	//
	// The connection is an io.ReaderFrom, as that of TCP is for its sendfile. If it reads from an io.LimitedReader over an
	// io.ReadSeeker with a method Content() (digest string, size int64), the SHA-256 and the size of the whole, the VM
	// takes the content from its own archives. If it is not there, it is sent, and the VM keeps it there. With N of 0, the
	// VM keeps it if it finds it among the files of the job.
	Take func(net.Conn)
}

const (
	// maxCarried bounds the connections of a job at a time: twice as many as a step runner has, which announces the next
	// one as soon as its end of another is closed.
	maxCarried = 128
	// carried is the length of the largest message with bytes of a connection.
	carried = 32<<10 - 64
)

// serveServices lets the job reach its services until stop is called, and adds their address to the job.
func (e *execution) serveServices(
	ctx, calls context.Context, rpc pb.ReachClient, of *Services,
) (stop func(), err error) {
	own, end := context.WithCancel(calls)
	r := &reaching{rpc: rpc, take: of.Take, slots: make(chan struct{}, maxCarried)}
	address, failed := make(chan string, 1), make(chan error, 1)
	r.wg.Go(func() {
		failed <- retryFor(own, e.patience, func() (bool, error) { return r.listen(own, address) })
	})
	stop = func() {
		end()
		r.wg.Wait()
	}
	select {
	case at := <-address:
		e.job.Job = e.job.With(of.job("http://" + at))
		return stop, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case err = <-failed:
		switch {
		case calls.Err() != nil:
			err = context.Cause(calls)
		case status.Code(err) == codes.Unimplemented:
			err = &RequestError{Message: "the step runner on the VM is too old for the services of actions: install this " +
				"version there"}
		default:
			err = fmt.Errorf("open the port for the services of actions: %w", plain(err))
		}
	}
	stop()
	return nil, err
}

// job tells a job the URL of its services, and the way to a Server that is Relayed.
func (s *Services) job(at string) *pb.Job {
	own := &pb.ActionServices{Url: at, Token: s.Token, Server: s.Server}
	if !s.Relayed {
		return &pb.Job{Services: own}
	}
	own.Relayed = s.Server
	if u, err := url.Parse(s.Server); err == nil {
		own.Server = at + u.EscapedPath()
	}
	return &pb.Job{Services: own, Env: map[string]string{ // for git of steps: it asks for all by the server's own URL
		"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "http." + s.Server + "/.proxy", "GIT_CONFIG_VALUE_0": at,
	}}
}

// reaching carries the connections of a job to its services.
type reaching struct {
	rpc   pb.ReachClient
	take  func(net.Conn)
	slots chan struct{}
	wg    sync.WaitGroup
}

// errAnnounced ends a step runner's Listen that says what it must not.
var errAnnounced = errors.New("the step runner announced too many connections, or no address")

// listen takes connections until ctx ends or the call breaks. It gives the address to address, if that has room.
func (r *reaching) listen(ctx context.Context, address chan<- string) (progress bool, err error) {
	stream, err := r.rpc.Listen(ctx, &pb.ListenRequest{})
	if err != nil {
		return false, err
	}
	files := false
	err = receive(stream, func(msg *pb.ListenResponse) error {
		if !progress {
			host, port, err := net.SplitHostPort(msg.GetAddress())
			if err != nil || net.ParseIP(host) == nil || port == "" {
				return errAnnounced
			}
			progress, files = true, msg.GetFiles()
			select {
			case address <- msg.GetAddress():
			default: // it is the same after a broken call
			}
			return nil
		}
		select {
		case r.slots <- struct{}{}:
		default:
			return errAnnounced
		}
		r.wg.Go(func() {
			defer func() { <-r.slots }()
			r.carry(ctx, msg.GetConnection(), files)
		})
		return nil
	})
	if err == nil {
		err = status.Error(codes.Unavailable, "the step runner listens no more")
	}
	return progress, err
}

// carry carries the bytes of a connection until one of its ends closes it.
func (r *reaching) carry(ctx context.Context, number int64, files bool) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	stream, err := r.rpc.Carry(ctx)
	if err != nil {
		return // the step runner announces it to the next Listen, or closes it at its end
	}
	if err := stream.Send(&pb.CarryRequest{Connection: number}); err != nil {
		return
	}
	near, far := net.Pipe()
	conn := &carriedConn{
		Conn: near, stream: stream, done: ctx.Done(), end: end, files: files, told: make(chan int64, 1),
	}
	defer context.AfterFunc(ctx, func() { far.Close() })()
	r.take(conn)
	var msg carryResponse
	for stream.RecvMsg(&msg) == nil {
		if msg.told < 0 {
			_, _ = far.Write(msg.data) // if the service has closed it, its last bytes may still be on their way
			continue
		}
		select {
		case conn.told <- msg.told:
		default: // nobody has asked
		}
	}
	far.Close()
}
