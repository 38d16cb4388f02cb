package control

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/stepmux/stepmux/internal/termtext"
)

// WriteText writes a table of the instances for people, and if builds is set one of the builds. now is what
// ages are counted to.
func (s *Status) WriteText(w io.Writer, now time.Time, builds bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "INSTANCE\tSTATE\tCONNECTION\tROUTE\tSESSIONS\tBUILDS\tOLDEST\tUSES\tLABELS")
	for i := range s.Instances {
		vm := &s.Instances[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d/%d\t%s\t%s\t%s\n", vm.ID, vm.State,
			connText(vm.Conn, now), routeText(vm.Route), sessionsText(vm.Conn.Sessions),
			len(vm.Builds), vm.Capacity, oldestText(vm.Builds, now), usesText(vm), labelsText(vm.Labels))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range s.Instances {
		if vm := &s.Instances[i]; vm.Reason != "" {
			fmt.Fprintf(w, "%s: %s%s\n", vm.ID, termtext.Line(vm.Reason), retryText(vm.RetryAt, now))
		}
	}
	if len(s.JumpHosts) > 0 {
		fmt.Fprintln(t, "JUMP HOST\tCONNECTION\tCARRIES")
	}
	for _, j := range s.JumpHosts {
		fmt.Fprintf(t, "%s\t%s\t%d\n", termtext.Line(j.ID), connText(j.Conn, now), j.Conn.Streams)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if s.Inventory != "" {
		fmt.Fprintf(w, "inventory not read, the one before is in force: %s\n", termtext.Line(s.Inventory))
	}
	if builds {
		s.writeBuilds(t, now)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d builds wait for a slot; run %d, since %s\n", s.Waiting, s.PID, age(s.Since, now))
	return err
}

func (s *Status) writeBuilds(t io.Writer, now time.Time) {
	fmt.Fprintln(t, "BUILD\tINSTANCE\tAGE")
	for i := range s.Instances {
		for _, b := range s.Instances[i].Builds {
			fmt.Fprintf(t, "%s\t%s\t%s\n", b.ID, s.Instances[i].ID, age(b.Since, now))
		}
	}
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
	return r.Start + "/" + cmp.Or(r.Bridge, "-")
}

func sessionsText(s Sessions) string {
	text := fmt.Sprint(s.Open)
	if s.Limit > 0 {
		text = fmt.Sprintf("%d/%d", s.Open, s.Limit)
	}
	if s.Waiting > 0 {
		text += fmt.Sprintf(" +%d wait", s.Waiting)
	}
	return text
}

func oldestText(builds []Build, now time.Time) string {
	if len(builds) == 0 {
		return "-"
	}
	return age(builds[0].Since, now)
}

func usesText(vm *VM) string {
	if vm.MaxUses == 0 {
		return fmt.Sprint(vm.Uses)
	}
	return fmt.Sprintf("%d/%d", vm.Uses, vm.MaxUses)
}

func labelsText(labels map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, termtext.Line(key+"="+labels[key]))
	}
	return cmp.Or(strings.Join(all, ","), "-")
}

func retryText(at *time.Time, now time.Time) string {
	if at == nil {
		return ""
	}
	return fmt.Sprintf(" (tried again in %v)", max(at.Sub(now), 0).Round(time.Second))
}

// age returns a time that has passed, in whole seconds.
func age(since, now time.Time) string {
	return max(now.Sub(since), 0).Truncate(time.Second).String()
}
