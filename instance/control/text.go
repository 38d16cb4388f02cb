package control

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/stepmux/stepmux/internal/labels"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/termtext"
)

// WriteText writes a table of the instances for people and, if builds is set, one of the builds. Ages are relative to
// now.
func (s *Status) WriteText(w io.Writer, now time.Time, builds bool) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "INSTANCE\tSTATE\tCONNECTION\tROUTE\tISOLATION\tSESSIONS\tBUILDS\tOLDEST\tUSES\tLABELS")
	for _, vm := range s.Instances {
		row(t, vm.ID, vm.State, connText(vm.Conn, now), routeText(vm.Route), cmp.Or(string(vm.Level), "-"),
			sessionsText(vm.Conn.Sessions),
			fmt.Sprintf("%d/%d", len(vm.Builds), vm.Capacity), oldestText(vm.Builds, now), outOf(vm.Uses, vm.MaxUses),
			cmp.Or(labels.Text(vm.Labels), "-"))
	}
	_ = t.Flush() // b accepts everything
	for _, vm := range s.Instances {
		if vm.Reason != "" {
			row(&b, vm.ID+": "+vm.Reason+retryText(vm.RetryAt, now))
		}
		if vm.Isolation.Reason != "" {
			row(&b, vm.ID+": isolation "+string(vm.Level)+": "+vm.Isolation.Reason)
		}
	}
	if len(s.JumpHosts) > 0 {
		fmt.Fprintln(t, "JUMP HOST\tCONNECTION\tCARRIES")
	}
	for _, j := range s.JumpHosts {
		row(t, j.ID, connText(j.Conn, now), fmt.Sprint(j.Conn.Streams))
	}
	_ = t.Flush()
	for _, server := range s.Servers {
		text := fmt.Sprintf("server %s: %s, %s", server.Name, server.State, plural.Count(int(server.Jobs), "job"))
		if server.Reason != "" {
			text += ": " + server.Reason
		}
		row(&b, text)
	}
	for _, g := range s.Groups {
		row(&b, g.text())
		if g.Error != "" {
			row(&b, "group "+g.Name+": "+g.Error)
		}
	}
	if s.Inventory != "" {
		row(&b, "inventory not read, the one before is in force: "+s.Inventory)
	}
	if builds {
		fmt.Fprintln(t, "BUILD\tINSTANCE\tAGE")
		for _, vm := range s.Instances {
			for _, b := range vm.Builds {
				row(t, b.ID, vm.ID, age(b.Since, now))
			}
		}
	}
	_ = t.Flush()
	fmt.Fprintf(&b, "%s: %d busy, %d free", plural.Count(s.Slots.Total, "slot"), s.Slots.Busy, s.Slots.Free)
	if s.Slots.Outside > 0 {
		fmt.Fprintf(&b, "; %s on VMs that take no more", plural.Count(s.Slots.Outside, "build"))
	}
	held := ""
	if s.Held > 0 {
		held = fmt.Sprintf(", %d of them because all VMs that fit are aside (their reasons are above)", s.Held)
	}
	fmt.Fprintf(&b, "\n%s waiting for a slot%s; process %d, since %s\n", plural.Count(s.Waiting, "build"), held, s.PID,
		age(s.Since, now))
	_, err := io.WriteString(w, b.String())
	return err
}

// text describes the group in a line.
func (g *VMGroup) text() string {
	if !g.Scales {
		return "group " + g.Name + ": another manager scales it"
	}
	text := fmt.Sprintf("group %s: %d ready", g.Name, g.Ready)
	for _, part := range []struct {
		n    int
		what string
	}{{g.Making, "being made"}, {g.Leaving, "leaving"}, {g.Other, "stopped or not reached"}} {
		if part.n > 0 {
			text += fmt.Sprintf(", %d %s", part.n, part.what)
		}
	}
	text += fmt.Sprintf(" of at most %s; %s wanted", plural.Count(g.Max, "VM"), plural.Count(g.Wanted, "slot"))
	if g.Missing != "" {
		text += ": " + g.Missing
	}
	return text
}

// row writes a row of fields, which may contain untrusted text.
func row(w io.Writer, fields ...string) {
	for i, field := range fields {
		fields[i] = termtext.Line(field)
	}
	_, _ = fmt.Fprintln(w, strings.Join(fields, "\t"))
}

func connText(c Connection, now time.Time) string {
	if c.Since == nil {
		return c.State
	}
	return c.State + " " + age(*c.Since, now)
}

func routeText(r Route) string {
	if r.Start == "" {
		return "-"
	}
	return string(r.Start + "/" + cmp.Or(r.Bridge, "-"))
}

func sessionsText(s Sessions) string {
	text := outOf(s.Open, s.Limit)
	if s.Waiting > 0 {
		text += fmt.Sprintf(" +%d wait", s.Waiting)
	}
	return text
}

// outOf returns a count, and its limit if that is not 0.
func outOf(n, limit int) string {
	if limit == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d/%d", n, limit)
}

func oldestText(builds []Build, now time.Time) string {
	if len(builds) == 0 {
		return "-"
	}
	return age(builds[0].Since, now)
}

func retryText(at *time.Time, now time.Time) string {
	if at == nil {
		return ""
	}
	return fmt.Sprintf(" (tried again in %v)", max(at.Sub(now), 0).Round(time.Second))
}

// age returns the time since since, in whole seconds.
func age(since, now time.Time) string {
	return max(now.Sub(since), 0).Truncate(time.Second).String()
}
