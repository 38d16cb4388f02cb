package page

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/labels"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/termtext"
)

const (
	// tailBytes is how much of a log a page begins with.
	tailBytes = 64 << 10
	// maxLine bounds a line of a log, in bytes. The rest of a longer one is the next line.
	maxLine = 16 << 10
)

// functions are those of the templates.
var functions = template.FuncMap{
	"age": age, "path": pathTo, "labels": labels.Text, "line": line, "seconds": seconds,
	"count": plural.Count[int],
	"took": func(b pb.BuildJSON) string {
		if b.Started == nil {
			return ""
		}
		end := time.Now()
		if b.Ended != nil {
			end = *b.Ended
		}
		return seconds(max(end.Sub(*b.Started), 0).Seconds()) // clocks differ
	},
	"until": func(part string) string {
		return map[string]string{"wait": "slot", "connect": "step runner", "first_output": "first output"}[part]
	},
	"clock":   func(t time.Time) string { return t.Local().Format(time.DateTime + " MST") },
	"isLease": func(id string) bool { return strings.HasPrefix(id, "lease-") },
	// A VM that an operator has taken out, and that is there, has no other state than draining.
	"isUndrained": func(state string) bool {
		return !slices.Contains([]instance.State{instance.Draining, instance.Removed, instance.Elsewhere},
			instance.State(state))
	},
	"outcome": func(b pb.BuildJSON) string {
		switch {
		case b.Phase != "ended":
			return b.Phase
		case b.Reason == pb.ScriptFailure && b.ExitCode != nil:
			return fmt.Sprintf("script_failure %d", *b.ExitCode)
		}
		return cmp.Or(b.Reason, b.Status)
	},
	"kind": func(b pb.BuildJSON) string { return cmp.Or(b.Status, b.Phase) },
}

// line returns foreign text as one line of at most so many bytes.
func line(text string, most int) string { return termtext.Cut(termtext.Line(text), most) }

// age returns the time since then.
func age(t any) string {
	switch t := t.(type) {
	case time.Time:
		return seconds(max(time.Since(t), 0).Seconds())
	case *time.Time:
		if t != nil {
			return age(*t)
		}
	}
	return ""
}

// seconds returns a time as people read it.
func seconds(s float64) string {
	switch d := time.Duration(s * float64(time.Second)); {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", s)
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(s))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	default:
		return fmt.Sprintf("%d d", int(d.Hours()/24))
	}
}

func (p *pages) overview(ctx context.Context, r *http.Request) (any, error) {
	s, queue, err := p.facts.now(ctx)
	if err != nil {
		return nil, err
	}
	ended, err := p.facts.ended(ctx)
	if err != nil {
		return nil, err
	}
	o := overviewOf(s, queue, ended, time.Now())
	o.choose(r.URL.Query().Get("q"), r.URL.Query().Get("sort"))
	return o, nil
}

// buildsData is the page of the builds.
type buildsData struct {
	Waiting int            `json:"waiting"`
	Running []pb.BuildJSON `json:"running"`
	Ended   []pb.BuildJSON `json:"ended"` // the latest
	Filter  string         `json:"-"`
}

// maxListed bounds the builds that have ended on their page.
const maxListed = 200

func (p *pages) builds(ctx context.Context, r *http.Request) (any, error) {
	s, _, err := p.facts.now(ctx)
	if err != nil {
		return nil, err
	}
	ended, err := p.facts.ended(ctx)
	if err != nil {
		return nil, err
	}
	b := buildsData{Waiting: s.Waiting, Filter: r.URL.Query().Get("q")}
	fits := func(j pb.BuildJSON) bool {
		return b.Filter == "" || slices.ContainsFunc([]string{j.ID, j.File, j.Instance, j.Reason},
			func(text string) bool { return strings.Contains(text, b.Filter) })
	}
	for _, vm := range s.Instances {
		for _, running := range vm.Builds {
			j := pb.BuildJSON{ID: running.ID, Phase: "running", Instance: vm.ID, File: running.File, Started: &running.Since}
			if fits(j) && len(b.Running) < maxRows {
				b.Running = append(b.Running, j)
			}
		}
	}
	for _, e := range ended {
		if j := e.JSON(); fits(j) && len(b.Ended) < maxListed {
			b.Ended = append(b.Ended, j)
		}
	}
	return b, nil
}

// vmData is the page of a VM.
type vmData struct {
	VM     control.VM     `json:"instance"`
	Builds []pb.BuildJSON `json:"builds"` // the latest that have ended
}

func (p *pages) vm(ctx context.Context, r *http.Request) (any, error) {
	id := idOf(r)
	s, _, err := p.facts.now(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(s.Instances, func(vm control.VM) bool { return vm.ID == id })
	if i < 0 {
		return nil, status.Errorf(codes.NotFound, "there is no instance %.160q", id)
	}
	ended, err := p.facts.ended(ctx)
	if err != nil {
		return nil, err
	}
	v := vmData{VM: s.Instances[i]}
	for _, b := range ended {
		if b.GetInstance() == id && len(v.Builds) < maxBuilds {
			v.Builds = append(v.Builds, b.JSON())
		}
	}
	return v, nil
}

// idOf returns the ID in the path of a page, without the end of its twin in JSON.
func idOf(r *http.Request) string { return strings.TrimSuffix(r.PathValue("id"), ".json") }

// buildData is the page of a build.
type buildData struct {
	Build pb.BuildJSON `json:"build"`
	// Log is the end of the log, from the byte LogFrom to LogTo.
	Log     string `json:"log"`
	LogFrom int64  `json:"log_from"`
	LogTo   int64  `json:"log_to"`
}

func (p *pages) build(ctx context.Context, r *http.Request) (any, error) {
	// The state of the build is asked for first: if it has ended, the log is whole.
	b, err := p.cfg.Manager.Get(ctx, &pb.GetRequest{Id: idOf(r)})
	if err != nil {
		return nil, err
	}
	tail, err := p.cfg.Manager.Follow(ctx, &pb.FollowRequest{Id: idOf(r), Offset: -tailBytes})
	if err != nil {
		return nil, err
	}
	d := buildData{Build: b.JSON(), LogFrom: -1}
	var text logText
	var shown []byte
	for {
		msg, err := tail.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		piece := msg.GetText()
		if d.LogFrom < 0 {
			d.LogFrom = msg.GetOffset()
			if _, after, found := bytes.Cut(piece, []byte{'\n'}); found && d.LogFrom > 0 { // its first line began before
				d.LogFrom += int64(len(piece) - len(after))
				piece = after
			}
			text.shown = d.LogFrom
		}
		shown = append(shown, text.take(piece, msg.GetOffset()+int64(len(msg.GetText())-len(piece)))...)
		if len(shown) > 8*tailBytes { // it grows while it is read
			break
		}
	}
	if b.GetPhase() == pb.Build_ended {
		shown = append(shown, text.end()...)
	}
	d.Log, d.LogFrom, d.LogTo = string(shown), max(d.LogFrom, 0), text.shown
	return d, nil
}

// logText makes a log fit for a page, line by line.
type logText struct {
	part  []byte // a line that has not ended
	shown int64  // the position after the last line that has
}

// take returns the lines that end with a piece of the log, which begins at an offset.
func (l *logText) take(piece []byte, offset int64) (lines []byte) {
	for i, c := range piece {
		if c != '\n' {
			l.part = append(l.part, c)
		}
		if c == '\n' || len(l.part) >= maxLine {
			lines = append(termtext.PlainLine(lines, l.part), '\n')
			l.part, l.shown = l.part[:0], offset+int64(i)+1
		}
	}
	return lines
}

// end returns the line that has not ended.
func (l *logText) end() []byte {
	l.shown += int64(len(l.part))
	return termtext.PlainLine(nil, l.part)
}

func (p *pages) failures(ctx context.Context, _ *http.Request) (any, error) {
	ended, err := p.facts.ended(ctx)
	if err != nil {
		return nil, err
	}
	return failuresOf(ended), nil
}

// eventsData is the page of the events of VMs.
type eventsData struct {
	Events []vmEvent `json:"events"` // the latest first
}

type vmEvent struct {
	At       time.Time `json:"at"`
	Kind     string    `json:"kind"`
	Instance string    `json:"instance,omitempty"`
	Group    string    `json:"group,omitempty"`
	Note     string    `json:"note,omitempty"`
}

// maxShown bounds the events of a page.
const maxShown = 1000

func (p *pages) events(ctx context.Context, r *http.Request) (any, error) {
	req := &pb.EventsRequest{}
	if about := r.URL.Query().Get("about"); about != "" {
		req.About = []string{about}
	}
	stream, err := p.cfg.Manager.Events(ctx, req)
	if err != nil {
		return nil, err
	}
	d := eventsData{Events: []vmEvent{}}
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if len(d.Events) == maxShown {
			d.Events = slices.Delete(d.Events, 0, 1)
		}
		d.Events = append(d.Events, vmEvent{e.GetAt().AsTime(), e.GetKind(), e.GetInstance(), e.GetGroup(), e.GetNote()})
	}
	slices.Reverse(d.Events)
	return d, nil
}

// auditData is the page of the actions of operators.
type auditData struct {
	Actions []auditEntry `json:"actions"` // the latest first
}

type auditEntry struct {
	At      time.Time `json:"at"`
	Who     string    `json:"who"`
	Action  string    `json:"action"`
	Subject string    `json:"subject"`
	Note    string    `json:"note,omitempty"`
}

func (p *pages) audit(ctx context.Context, _ *http.Request) (any, error) {
	resp, err := p.cfg.Manager.Audit(ctx, &pb.AuditRequest{})
	if err != nil {
		return nil, err
	}
	d := auditData{Actions: []auditEntry{}}
	for _, e := range resp.GetEntries() {
		d.Actions = append(d.Actions,
			auditEntry{e.GetAt().AsTime(), e.GetWho(), e.GetAction(), e.GetSubject(), e.GetNote()})
	}
	return d, nil
}
