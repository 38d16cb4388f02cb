package sshdoor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/instance/manager/command"
	"github.com/stepmux/stepmux/internal/flight"
	"github.com/stepmux/stepmux/internal/wire"
)

// login is a client that has logged in by SSH. Its slot begins with the first channel that needs one, and ends with
// the connection.
type login struct {
	door *door
	conn *ssh.ServerConn
	ctx  context.Context // ends with the connection
	end  context.CancelFunc
	work sync.WaitGroup // goroutines of channels
	slot flight.Flight[*Slot]

	channels chan struct{} // has an element for each channel
	ahead    atomic.Int64  // how many wait for a slot before this login; negative if that is not known
}

func newLogin(d *door, conn *ssh.ServerConn) *login {
	l := &login{
		door: d, conn: conn, channels: make(chan struct{}, maxChannels), slot: flight.Flight[*Slot]{GoOn: true},
	}
	l.ahead.Store(-1)
	l.ctx, l.end = context.WithCancel(d.life)
	return l
}

// serve serves the channels of a login until its connection ends. Then it ends their commands and gives the slot back.
func (l *login) serve(channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	defer func() {
		l.end()
		l.work.Wait()
		l.slot.Close()
		if slot, ok := l.slot.Kept(); ok {
			slot.Release()
		}
	}()
	l.work.Go(func() { refuseRequests(requests) })
	l.work.Go(l.watch)
	for channel := range channels {
		select {
		case l.channels <- struct{}{}:
			l.work.Go(func() {
				l.open(channel)
				<-l.channels
			})
		default:
			_ = channel.Reject(ssh.ResourceShortage, fmt.Sprintf("a connection has at most %d channels", maxChannels))
		}
	}
}

// refuseRequests answers requests such as keepalive@openssh.com and tcpip-forward.
func refuseRequests(requests <-chan *ssh.Request) {
	for r := range requests {
		if r.WantReply {
			_ = r.Reply(false, nil) // fails only if the connection has ended, as the next receive tells
		}
	}
}

// watch closes the connection of a client that gives no sign of life. Any answer is one.
func (l *login) watch() {
	tick := time.NewTicker(ping)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.ctx.Done():
			_ = l.conn.Close() // it may have ended
			return
		}
		timer := time.AfterFunc(dead, func() { _ = l.conn.Close() })
		_, _, err := l.conn.SendRequest("keepalive@openssh.com", true, nil)
		timer.Stop()
		if err != nil {
			return
		}
	}
}

// open serves a channel to its end.
func (l *login) open(channel ssh.NewChannel) {
	switch kind := channel.ChannelType(); kind {
	case "session":
		ch, requests, err := channel.Accept()
		if err != nil {
			return // the connection has ended
		}
		(&session{login: l, ch: ch}).serve(requests)
	case "direct-tcpip", "direct-streamlocal@openssh.com":
		l.forward(channel, kind)
	default:
		_ = channel.Reject(ssh.UnknownChannelType, "there are sessions and forwards only")
	}
}

// request is the slot that the user name asks for.
func (l *login) request() (r Request, err error) {
	user := l.conn.User()
	if user == anyVM {
		return r, nil
	}
	if !strings.Contains(user, "=") {
		r.Instance = user
		return r, nil
	}
	r.Labels = map[string]string{}
	for label := range strings.SplitSeq(user, ",") {
		name, value, ok := strings.Cut(label, "=")
		if !ok || name == "" {
			return r, fmt.Errorf("the user name %.80q: use any, the ID of a VM, or labels as in os=linux,size=large", user)
		}
		r.Labels[name] = value
	}
	return r, nil
}

// reserve asks for the slot. If it is refused, the next command of the login asks again.
func (l *login) reserve(context.Context) (*Slot, time.Duration, error) {
	r, err := l.request()
	if err != nil {
		return nil, 0, err
	}
	//nolint:contextcheck // the slot is the login's, whichever command asked first
	got, err := l.door.host.Reserve(l.ctx, r, func(ahead int) error {
		l.ahead.Store(int64(ahead))
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return got, -1, nil
}

// await returns the login's slot. says is told how long the queue is, when that changes.
func (l *login) await(ctx context.Context, says func(ahead int64)) (got *Slot, err error) {
	reserved := make(chan struct{})
	l.work.Go(func() {
		defer close(reserved)
		got, err = l.slot.Do(ctx, l.reserve)
	})
	tick := time.NewTicker(aheadPause)
	defer tick.Stop()
	said, at := int64(-1), time.Time{}
	for {
		select {
		case <-reserved:
			return got, err
		case <-tick.C:
			if ahead := l.ahead.Load(); ahead != said && time.Since(at) >= waitLines {
				said, at = ahead, time.Now()
				says(ahead)
			}
		}
	}
}

// aheadPause is the time between two looks at the length of the queue for a slot, and waitLines the time between two
// lines about it.
const aheadPause, waitLines = 500 * time.Millisecond, 10 * time.Second

// forward connects a channel to an address as seen from the VM.
func (l *login) forward(channel ssh.NewChannel, kind string) {
	reject := func(reason ssh.RejectionReason, text string) { _ = channel.Reject(reason, text) }
	if !l.door.cfg.Forward {
		reject(ssh.Prohibited, "this manager allows no forwarding")
		return
	}
	network, address, err := forwardTo(kind, channel.ExtraData())
	if err != nil {
		reject(ssh.ConnectionFailed, err.Error())
		return
	}
	slot, err := l.await(l.ctx, func(int64) {})
	if err != nil {
		reject(ssh.ConnectionFailed, err.Error())
		return
	}
	client, err := slot.Commands.Client(l.ctx)
	if err != nil {
		reject(ssh.ConnectionFailed, err.Error())
		return
	}
	defer func() { _ = client.Close() }() // always nil
	target, err := client.Dial(network, address)
	if err != nil {
		reject(ssh.ConnectionFailed, err.Error())
		return
	}
	defer target.Close()
	ch, requests, err := channel.Accept()
	if err != nil {
		return // the connection has ended
	}
	defer ch.Close()
	join(l.ctx, ch, requests, target)
}

// forwardTo reads the address of a forward (RFC 4254, section 7.2; OpenSSH's PROTOCOL, section 2.4).
func forwardTo(kind string, data []byte) (network, address string, err error) {
	if kind == "direct-tcpip" {
		var to struct {
			Host       string
			Port       uint32
			Originator string
			OriginPort uint32
		}
		if err := ssh.Unmarshal(data, &to); err != nil || to.Port == 0 || to.Port > 65535 {
			return "", "", errors.New("the address of the forward is not valid")
		}
		return "tcp", net.JoinHostPort(to.Host, strconv.FormatUint(uint64(to.Port), 10)), nil
	}
	var to struct {
		Path     string
		Reserved string
		Port     uint32
	}
	if err := ssh.Unmarshal(data, &to); err != nil || !strings.HasPrefix(to.Path, "/") {
		return "", "", errors.New("the path of the forward is not valid")
	}
	return "unix", to.Path, nil
}

// join copies both ways between a channel and a connection, until both have ended, the channel is closed, or ctx ends.
// The end of one direction is passed on. Bytes that a client sent before it closed the channel still reach the target.
func join(ctx context.Context, ch ssh.Channel, requests <-chan *ssh.Request, target net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _, _ = target.Close(), ch.Close() })()
	var copies sync.WaitGroup
	defer copies.Wait()
	sent := make(chan struct{})
	go func() { // it ends with the channel
		refuseRequests(requests)
		<-sent
		cancel()
	}()
	copies.Go(func() {
		defer close(sent)
		if _, err := io.Copy(onlyWriter{target}, onlyReader{ch}); err != nil {
			cancel()
		}
		if half, ok := target.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // it may have ended
		}
	})
	_, err := io.Copy(onlyWriter{ch}, onlyReader{target})
	if errors.Is(err, io.EOF) { // the channel is closed; a target that cannot write may not read on
		_, err = io.Copy(io.Discard, onlyReader{target})
	}
	_ = ch.CloseWrite() // it may have ended
	if err != nil {
		cancel()
	}
	copies.Wait()
}

// onlyWriter and onlyReader hide ReadFrom and WriteTo, which splice, and spin while the receiver does not read.
type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

// session is a session channel (RFC 4254, section 6): one command.
type session struct {
	*login
	ch ssh.Channel

	terminal *terminal       // that was asked for; nil if none was
	in       *command.Inputs // of the command; nil before it
}

// terminal is a pty-req (RFC 4254, section 6.2).
type terminal struct {
	Term                         string
	Columns, Rows, Width, Height uint32
	Modes                        string
}

// terminalLine runs the command line $1 in a terminal of the type $2 with $3 rows and $4 columns, which script(1)
// makes. Without script the command gets no terminal, and says so.
const terminalLine = `command -v script >/dev/null || { echo "stepmux: there is no terminal here: the VM has no ` +
	`script(1)" >&2; exec "${SHELL:-/bin/sh}" -c "$1"; }
export TERM="$2" STEPMUX_LINE="$1" STEPMUX_SHELL="${SHELL:-/bin/sh}" SHELL=/bin/sh
exec script -qefc "stty rows $3 cols $4; "'l=$STEPMUX_LINE SHELL=$STEPMUX_SHELL
unset STEPMUX_LINE STEPMUX_SHELL; export SHELL; exec "$SHELL" -c "$l"' /dev/null`

// maxTerminal bounds the rows and columns of a terminal.
const maxTerminal = 1000

// run returns the command line that runs a line in the terminal.
func (t *terminal) run(line string) (string, error) {
	size := func(n, otherwise uint32) string {
		return strconv.FormatUint(uint64(min(cmp.Or(n, otherwise), maxTerminal)), 10)
	}
	quoted, err := wire.LoginLine("sh", "-c", terminalLine, "sh", line, cmp.Or(t.Term, "dumb"), size(t.Rows, 24),
		size(t.Columns, 80))
	return "exec " + quoted, err
}

// sftpLine starts the SFTP server of the VM, wherever its OpenSSH has it: in Debian, Fedora, Arch and Alpine, openSUSE,
// NixOS, or as OpenSSH itself installs it.
const sftpLine = `for p in /usr/lib/openssh/sftp-server /usr/libexec/openssh/sftp-server /usr/lib/ssh/sftp-server ` +
	`/usr/libexec/ssh/sftp-server /run/current-system/sw/libexec/sftp-server /usr/libexec/sftp-server; ` +
	`do [ ! -x "$p" ] || exec "$p"; done; exec sftp-server`

// shellLine starts the login's shell as at a login, which need not be a POSIX shell.
const shellLine = `exec sh -c 'exec "${SHELL:-/bin/sh}" -l'`

// serve answers the requests of the channel until it is closed, and waits for its command.
func (s *session) serve(requests <-chan *ssh.Request) {
	ctx, cancel := context.WithCancel(s.ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	defer func() { _ = s.ch.Close() }() // it may be closed; wakes the command's writes
	for r := range requests {
		line, ok := s.take(r)
		if r.WantReply {
			_ = r.Reply(ok, nil) // fails only if the connection has ended
		}
		if line == "" {
			continue
		}
		running.Go(func() {
			s.run(ctx, line)
			_ = s.ch.Close() // the requests end
		})
	}
}

// take handles a request. It returns the command line that the request starts, if it does.
func (s *session) take(r *ssh.Request) (line string, ok bool) {
	var text struct{ Text string }
	switch r.Type {
	case "pty-req":
		asked := &terminal{}
		if ssh.Unmarshal(r.Payload, asked) != nil || len(asked.Term) > 64 || s.in != nil {
			return "", false
		}
		asked.Modes = "" // they are not used, and can be long
		s.terminal = asked
		return "", true
	case "shell":
		line = shellLine
	case "exec":
		if ssh.Unmarshal(r.Payload, &text) != nil || text.Text == "" || len(text.Text) > command.MaxLine {
			return "", false
		}
		line = text.Text
	case "subsystem":
		if ssh.Unmarshal(r.Payload, &text) != nil || text.Text != "sftp" {
			return "", false
		}
		quoted, err := wire.LoginLine("sh", "-c", sftpLine)
		if err != nil {
			return "", false
		}
		line = "exec " + quoted
	case "signal":
		if s.in == nil || ssh.Unmarshal(r.Payload, &text) != nil {
			return "", false
		}
		s.in.Signal(text.Text)
		return "", true
	default: // env among them: variables are part of the command line here, if they are needed
		return "", false
	}
	if s.in != nil {
		return "", false // a session has one command
	}
	if s.terminal != nil {
		var err error
		if line, err = s.terminal.run(line); err != nil {
			return "", false
		}
	}
	s.in = command.NewInputs(maxInput)
	return line, true
}

// run runs a command and reports its end.
func (s *session) run(ctx context.Context, line string) {
	say := func(text string) { _, _ = io.WriteString(s.ch.Stderr(), "stepmux: "+text+"\r\n") }
	defer s.in.Stop()
	s.work.Go(func() { // it ends with the channel
		_, _ = io.Copy(onlyWriter{s.in}, onlyReader{s.ch})
		s.in.End()
	})
	code, err := 0, error(nil)
	slot, err := s.await(ctx, func(ahead int64) { say(fmt.Sprintf("waiting for a slot, %d ahead", ahead)) })
	if err == nil {
		code, err = slot.Commands.Run(ctx, command.Line{Text: line, Tools: true}, s.in, onlyWriter{s.ch}, s.ch.Stderr())
	}
	if ctx.Err() != nil {
		return // the client has gone
	}
	if err != nil {
		say(err.Error())
		code = 255 // as ssh says of itself
	}
	// These fail only if the connection has ended.
	status := ssh.Marshal(struct{ Status uint32 }{uint32(code)}) // 0 to 255
	_, _ = s.ch.SendRequest("exit-status", false, status)
	_ = s.ch.CloseWrite()
}
