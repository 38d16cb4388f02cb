package control

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/labels"
	"github.com/stepmux/stepmux/internal/plural"
)

// Explain writes why VMs are there and why builds wait: about the VM with an ID, about the VMs with a label, as
// name=value, or, if about is empty, about all VMs of groups that come and go. It returns an error if nothing is about
// that.
func (s *Status) Explain(w io.Writer, about string, now time.Time) error {
	var b strings.Builder
	name, value, isLabel := strings.Cut(about, "=")
	wanted := map[string]string{}
	if isLabel {
		wanted[name] = value
	}
	is := func(vm VM) bool { return vm.ID == about }
	switch i := slices.IndexFunc(s.Instances, is); {
	case i >= 0:
		s.explainVM(&b, &s.Instances[i], now)
		_, err := io.WriteString(w, b.String())
		return err
	case about != "" && !isLabel:
		return fmt.Errorf("there is no VM %.160q; for the VMs with a label write it as name=value", about)
	}
	explained := 0
	for i := range s.Groups {
		g := &s.Groups[i]
		if !instance.HasLabels(g.Labels, wanted) {
			continue
		}
		explained++
		row(&b, g.text())
		if g.Waiting > 0 {
			row(&b, "  "+plural.Count(g.Waiting, "build")+" that its VMs would do for without a slot")
		}
		if g.Error != "" {
			row(&b, "  the last error of its source: "+g.Error)
		}
	}
	for i := range s.Instances {
		vm := &s.Instances[i]
		if isLabel && instance.HasLabels(vm.Labels, wanted) || !isLabel && vm.Group != "" {
			explained++
			s.explainVM(&b, vm, now)
		}
	}
	switch {
	case explained == 0 && isLabel:
		return fmt.Errorf("no VM has the label %.160s, and none with it can be made", labels.Text(wanted))
	case explained == 0:
		row(&b, "no VMs come and go here: the key elastic of a manager's file describes groups of such VMs")
	case isLabel:
		_, why := s.WhyWaits(wanted)
		row(&b, "the next build with this label: "+why)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// explainVM writes why a VM is there, and how it stands.
func (s *Status) explainVM(w io.Writer, vm *VM, now time.Time) {
	text := fmt.Sprintf("%s: %s, %d of %s in use", vm.ID, vm.State, len(vm.Builds), plural.Count(vm.Capacity, "slot"))
	if vm.Group != "" {
		text += ", group " + vm.Group
	}
	if note := cmp.Or(vm.Reason, vm.Note); note != "" {
		text += ": " + note
	}
	row(w, text+retryText(vm.RetryAt, now))
	for _, build := range vm.Builds {
		row(w, fmt.Sprintf("  build %s, for %s", build.ID, age(build.Since, now)))
	}
}
