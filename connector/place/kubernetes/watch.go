package kubernetes

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
)

const (
	// watchTime is how long the API server keeps one watch open. If it does not hang up, we do, watchSlack later.
	watchTime, watchSlack = 4 * time.Minute, 30 * time.Second
	// maxEvent bounds one event of a watch: a pod is an object of at most about 1.5 MB.
	maxEvent = 4 << 20
)

// watch keeps the newest state of the pod until it is removed or ctx ends. After each break it reads the whole state
// and continues from there, so that no change is missed.
func (p *Pod) watch(ctx context.Context) {
	for wait := firstPause; ctx.Err() == nil && !p.Removed(); {
		began := time.Now()
		err := p.watchOnce(ctx)
		if isCode(err, http.StatusNotFound) {
			p.gone()
			return
		}
		if err != nil && ctx.Err() == nil {
			p.cfg.Logger.Debug("the pod is watched again", "pod", p.name, "error", err)
			if isCode(err, http.StatusUnauthorized) || isCode(err, http.StatusForbidden) {
				p.setBlind(err)
			}
		}
		if wait = min(2*wait, lastPause); time.Since(began) > lastPause {
			wait = firstPause
		}
		_ = pause.For(ctx, pauseAfter(err, wait)) // the loop's condition is checked next
	}
}

func (p *Pod) watchOnce(ctx context.Context) error {
	op := "watch pod " + p.name
	var now object
	if _, err := p.cluster.call(ctx, op, http.MethodGet, p.cluster.podPath(p.name), nil, nil, &now); err != nil {
		return err
	}
	if !p.update(&now) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, watchTime+watchSlack)
	defer cancel()
	query := url.Values{
		"watch": {"1"}, "fieldSelector": {"metadata.name=" + p.name}, "resourceVersion": {now.Metadata.ResourceVersion},
		"timeoutSeconds": {strconv.Itoa(int(watchTime.Seconds()))},
	}
	answer, err := p.cluster.send(ctx, op, http.MethodGet, p.cluster.podPath(""), query, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	p.setBlind(nil)
	return readEvents(answer.Body, func(kind string, text json.RawMessage) error {
		switch kind {
		case "ADDED", "MODIFIED", "DELETED":
		default: // the server asks for a new watch
			return fmt.Errorf("%s: the API server says %.20q: %s", op, kind, foreignText(string(text)))
		}
		var now object
		if err := json.Unmarshal(text, &now); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		if p.update(&now); kind == "DELETED" {
			p.gone()
			return io.EOF
		}
		return nil
	})
}

// readEvents calls take with each event of a watch, until the watch ends or take fails.
func readEvents(from io.Reader, take func(kind string, text json.RawMessage) error) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 0, 16<<10), maxEvent)
	for lines.Scan() {
		var event struct {
			Type   string
			Object json.RawMessage
		}
		err := json.Unmarshal(lines.Bytes(), &event)
		if err == nil {
			err = take(event.Type, event.Object)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return lines.Err()
}

// update stores a newer state of the pod. It returns false if that is another pod with the same name.
func (p *Pod) update(now *object) bool {
	if p.uid != now.Metadata.UID {
		p.gone()
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = *now
	now.pullErrors(p.pulls)
	switch {
	case !now.ended():
	case now.Metadata.DeletionTimestamp != nil:
		p.endAs(now.deletedText(), now.ofNode())
	default:
		p.endAs(now.endText(), now.ofNode())
	}
	p.changeLocked()
	return true
}

// setBlind records why the pod cannot be watched, or nil if it can.
func (p *Pod) setBlind(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blind = err
	p.changeLocked()
}

// gone records that the API server no longer has the pod.
func (p *Pod) gone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removed = true
	p.endAs(p.seen.deletedText(), p.seen.ofNode())
	p.changeLocked()
}

// endAs records why the pod has ended, unless that is known. another means that another pod may succeed.
func (p *Pod) endAs(why string, another bool) {
	p.end(p.because(cmp.Or(why, "the pod has ended"), another))
}

// endError returns why the pod has ended, or nil if it has not.
func (p *Pod) endError() error { return context.Cause(p.alive) }

// changeLocked wakes all calls that wait for a change.
func (p *Pod) changeLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}
