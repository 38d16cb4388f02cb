// Package reach is the service Reach of a step runner: processes of a build reach services of its manager by a port of
// their own machine. Parts of files that the services tell them come from a store here, if it has these, and otherwise
// are kept there.
//
// The owner of a [Server] registers it at a gRPC server, and closes it when that has ended.
package reach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/contents"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

const (
	// MaxConns bounds the connections of a build at a time. Further ones wait.
	MaxConns = 64
	// piece is the length of the largest message with bytes of a connection.
	piece = 32<<10 - 64
)

// errReplaced ends a Listen when a later one begins.
var errReplaced = status.Error(codes.Aborted, "another call listens now")

// Server serves the service Reach for one build. It is safe for concurrent use.
type Server struct {
	pb.UnimplementedReachServer
	turn  chan struct{} // held by the Listen that accepts
	slots chan struct{} // one for each connection
	wg    sync.WaitGroup
	dir   string
	store func() *contents.Store
	files files
	// closing is closed if Close has waited for long.
	closing chan struct{}

	mu       sync.Mutex // guards the following
	listener *net.TCPListener
	replace  context.CancelCauseFunc // of the latest Listen
	number   int64
	waiting  map[int64]net.Conn
}

// New returns a Server for the build in a directory. store returns the store for files, or nil if they are not kept.
// The caller closes the Server.
func New(dir string, store func() *contents.Store) *Server {
	return &Server{
		dir: dir, store: store, files: files{all: map[string]*file{}},
		turn: make(chan struct{}, 1), slots: make(chan struct{}, MaxConns), waiting: map[int64]net.Conn{},
		replace: func(error) {}, closing: make(chan struct{}),
	}
}

// Register makes the service Reach part of a server that does not serve yet.
func (s *Server) Register(server *grpc.Server) { pb.RegisterReachServer(server, s) }

// Used reports whether a process has connected to the port.
func (s *Server) Used() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.number > 0
}

// Close closes the port. The gRPC server has ended.
func (s *Server) Close() {
	s.mu.Lock()
	if s.listener != nil {
		_ = s.listener.Close()
	}
	for number, conn := range s.waiting {
		s.closeConn(conn)
		delete(s.waiting, number)
	}
	s.mu.Unlock()
	late := time.AfterFunc(patience, func() { close(s.closing) })
	s.wg.Wait()
	late.Stop()
	s.files.close()
}

// Listen implements the Reach service.
func (s *Server) Listen(_ *pb.ListenRequest, stream grpc.ServerStreamingServer[pb.ListenResponse]) error {
	ctx, end := context.WithCancelCause(stream.Context())
	defer end(nil)
	s.mu.Lock()
	s.replace(errReplaced)
	s.replace = end
	s.mu.Unlock()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	listener, err := s.open()
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	first := &pb.ListenResponse{Address: listener.Addr().String(), Files: s.files.store != nil}
	if err := stream.Send(first); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = listener.SetDeadline(time.Unix(1, 0)) })()
	for _, number := range s.left() {
		if err := stream.Send(&pb.ListenResponse{Connection: number}); err != nil {
			return err
		}
	}
	for {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		conn, err := listener.Accept()
		if err != nil {
			<-s.slots
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return status.Error(codes.Unavailable, err.Error())
		}
		if err := stream.Send(&pb.ListenResponse{Connection: s.add(conn)}); err != nil {
			return err
		}
	}
}

// open returns the listener of the build, which waits for connections.
func (s *Server) open() (*net.TCPListener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		return s.listener, s.listener.SetDeadline(time.Time{})
	}
	var err error
	for _, address := range []string{"127.0.0.1", "::1"} {
		var listener *net.TCPListener
		if listener, err = net.ListenTCP("tcp", &net.TCPAddr{IP: net.ParseIP(address)}); err == nil {
			s.listener, s.files.store = listener, s.store()
			return listener, nil
		}
	}
	return nil, fmt.Errorf("listen on the loopback interface: %w", err)
}

// add keeps a connection until Carry takes it, and returns its number.
func (s *Server) add(conn net.Conn) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number++
	s.waiting[s.number] = conn
	return s.number
}

// left returns the numbers of the connections that nobody has taken, as when the announcement was lost.
func (s *Server) left() (numbers []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for number := range s.waiting {
		numbers = append(numbers, number)
	}
	return numbers
}

// take returns a connection, which closeConn closes.
func (s *Server) take(number int64) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	conn, ok := s.waiting[number]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "there is no connection %d", number)
	}
	delete(s.waiting, number)
	return conn, nil
}

// closeConn closes a connection, and gives back its slot.
func (s *Server) closeConn(conn net.Conn) {
	conn.Close()
	<-s.slots
}

// Carry implements the Reach service.
func (s *Server) Carry(stream grpc.BidiStreamingServer[pb.CarryRequest, pb.CarryResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	conn, err := s.take(first.GetConnection())
	if err != nil {
		return err
	}
	defer s.closeConn(conn)
	var sending sync.Mutex
	s.wg.Go(func() { // it ends with the stream
		defer conn.Close()
		var rest part
		for {
			msg, err := stream.Recv()
			switch {
			case err != nil:
			case msg.GetDigest() != "":
				var told int64
				rest = part{}
				if msg.GetLength() > 0 {
					told, rest = s.files.tell(conn, msg)
				} else if from := made(s.dir, msg.GetSize()); from != nil {
					s.wg.Go(func() { s.files.take(from, msg.GetDigest(), msg.GetSize(), s.closing) })
				}
				sending.Lock()
				err = stream.Send(&pb.CarryResponse{Told: &told})
				sending.Unlock()
			default:
				_, err = conn.Write(msg.GetData())
				_, _ = rest.Write(msg.GetData()) // it never fails
			}
			if err != nil {
				return
			}
		}
	})
	// The end of the call closes the connection, also while the process reads nothing.
	defer context.AfterFunc(stream.Context(), func() { conn.Close() })()
	buf := make([]byte, piece)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			sending.Lock()
			err := stream.Send(&pb.CarryResponse{Data: buf[:n]})
			sending.Unlock()
			if err != nil {
				return err
			}
		}
		if err != nil {
			return ended(err)
		}
	}
}

// ended returns the status for the end of a connection.
func ended(err error) error {
	if _, failed := errors.AsType[*net.OpError](err); failed && !errors.Is(err, net.ErrClosed) {
		return status.Error(codes.Aborted, err.Error())
	}
	return nil
}
