package page

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

const (
	// maxStreams bounds the streams of events.
	maxStreams = 100
	// refreshPause is the time between two checks of the data of a stream. quietTime is the time after which a silent
	// stream sends a sign of life.
	refreshPause, quietTime = time.Second, 15 * time.Second
	// sendTimeout bounds a write to a browser. One that does not read for so long is closed.
	sendTimeout = 10 * time.Second
)

// events is a stream of server-sent events to a browser.
type events struct {
	w    http.ResponseWriter
	to   *http.ResponseController
	last time.Time // something was sent
}

// openEvents begins a stream. The caller calls done.
func (p *pages) openEvents(w http.ResponseWriter, r *http.Request) (e *events, done func(), ok bool) {
	select {
	case p.streams <- struct{}{}:
	default:
		w.Header().Set("Retry-After", "10")
		p.refuse(w, r, http.StatusServiceUnavailable, "too many pages are open: load this one again later")
		return nil, nil, false
	}
	e = &events{w: w, to: http.NewResponseController(w)}
	_ = e.to.SetReadDeadline(time.Time{}) // fails only if the connection has ended, as the first write tells
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // for a proxy
	return e, func() { <-p.streams }, true
}

// send sends an event. id is the position after it; it may be empty.
func (e *events) send(kind, id string, data []byte) error {
	var text bytes.Buffer
	text.WriteString("event: " + kind + "\n")
	if id != "" {
		text.WriteString("id: " + id + "\n")
	}
	for part := range bytes.SplitSeq(bytes.ReplaceAll(data, []byte{'\r'}, nil), []byte{'\n'}) {
		text.WriteString("data: ")
		text.Write(part)
		text.WriteByte('\n')
	}
	text.WriteByte('\n')
	return e.write(text.Bytes())
}

func (e *events) write(text []byte) error {
	e.last = time.Now()
	if err := e.to.SetWriteDeadline(e.last.Add(sendTimeout)); err != nil {
		return err
	}
	if _, err := e.w.Write(text); err != nil {
		return err
	}
	return e.to.Flush()
}

// part is a part of a page that is replaced when it changes.
type part struct {
	name  string // of the page
	data  pageData
	shown []byte
}

// errLoggedOut ends the stream of a login that has ended.
var errLoggedOut = errors.New("the login has ended")

// refresh sends a part if it has changed.
func (p *pages) refresh(ctx context.Context, e *events, r *http.Request, of *part) error {
	if !p.seesPages(r) {
		return errLoggedOut
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	data, err := of.data(ctx, r)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := p.layout.ExecuteTemplate(&text, of.name+"-live", p.frame(r, of.name, data)); err != nil {
		return err
	}
	switch {
	case !bytes.Equal(text.Bytes(), of.shown):
		of.shown = text.Bytes()
		return e.send("page", "", of.shown)
	case time.Since(e.last) > quietTime:
		return e.write([]byte(": nothing new\n\n"))
	default:
		return nil
	}
}

// live refreshes a part of a page until the browser goes away.
func (p *pages) live(w http.ResponseWriter, r *http.Request, of *part) {
	e, done, ok := p.openEvents(w, r)
	if !ok {
		return
	}
	defer done()
	tick := time.NewTicker(refreshPause)
	defer tick.Stop()
	for p.refresh(r.Context(), e, r, of) == nil { // else the browser asks again
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}

func (p *pages) liveOverview(w http.ResponseWriter, r *http.Request) {
	p.live(w, r, &part{name: "overview", data: p.overview})
}

func (p *pages) liveVM(w http.ResponseWriter, r *http.Request) {
	p.live(w, r, &part{name: "vm", data: p.vm})
}

// liveBuild sends the log of a build from an offset to its end, and the build as it changes.
func (p *pages) liveBuild(w http.ResponseWriter, r *http.Request) {
	from := r.Header.Get("Last-Event-ID")
	if from == "" {
		from = r.URL.Query().Get("offset")
	}
	offset, _ := strconv.ParseInt(from, 10, 64) // else from the beginning
	e, done, ok := p.openEvents(w, r)
	if !ok {
		return
	}
	defer done()
	head := &part{name: "build", data: func(ctx context.Context, r *http.Request) (any, error) {
		b, err := p.cfg.Manager.Get(ctx, &pb.GetRequest{Id: r.PathValue("id")})
		return buildData{Build: b.JSON()}, err
	}}
	if p.refresh(r.Context(), e, r, head) != nil {
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	pieces := make(chan *pb.FollowResponse)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	reading.Go(func() {
		defer close(pieces)
		log, err := p.cfg.Manager.Follow(ctx, &pb.FollowRequest{Id: r.PathValue("id"), Offset: max(offset, 0), Follow: true})
		for err == nil {
			var piece *pb.FollowResponse
			if piece, err = log.Recv(); err != nil {
				return
			}
			select {
			case pieces <- piece:
			case <-ctx.Done():
				return
			}
		}
	})
	tick := time.NewTicker(refreshPause)
	defer tick.Stop()
	text := logText{shown: max(offset, 0)}
	for {
		select {
		case piece, more := <-pieces:
			if !more {
				return // the browser asks again, from where it is
			}
			shown := text.take(piece.GetText(), piece.GetOffset())
			if piece.GetBuild() != nil {
				shown = append(shown, text.end()...)
			}
			if len(shown) > 0 && sendLog(e, text.shown, shown) != nil {
				return
			}
			if piece.GetBuild() != nil {
				if p.refresh(ctx, e, r, head) == nil {
					_ = e.send("end", "", nil) // the browser may have gone
				}
				return
			}
		case <-tick.C:
			if p.refresh(ctx, e, r, head) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// sendLog sends lines of a log, which end at an offset.
func sendLog(e *events, end int64, lines []byte) error {
	text, err := json.Marshal(string(lines))
	if err != nil {
		return err
	}
	return e.send("log", strconv.FormatInt(end, 10), text)
}
