package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// maxBuilds bounds the builds of a run, as each waiting build costs memory.
const maxBuilds = 100_000

// buildFlags select the builds of a run for each FILE.
type buildFlags struct {
	builds      int
	each        bool
	selected    map[string]string // labels of the VMs
	matrix      []axis
	maxFailures int
}

// variableName matches the name of a variable of the environment.
var variableName = regexp.MustCompile("^[A-Za-z_][A-Za-z0-9_]*$")

// axis is a variable of the matrix.
type axis struct {
	name   string
	values []string
}

func (f *buildFlags) register(fl *pflag.FlagSet) {
	f.selected = map[string]string{}
	fl.IntVar(&f.builds, "builds", 1, "how many builds to run of each FILE; CI_NODE_INDEX is the number of the build, "+
		"from 1, and CI_NODE_TOTAL how many there are")
	fl.BoolVar(&f.each, "each", false, "run the builds on every VM; each line of a log names it")
	fl.Func("select", "use only VMs that have the label `LABEL=VALUE` in the inventory; repeatable, a VM must have all",
		func(text string) error { return assignLabel(f.selected, text) })
	fl.Func("matrix", "run the builds once for each value of a job variable, `NAME=VALUE,VALUE...`, which is "+
		"also in the environment; repeatable: each combination", func(text string) error {
		name, values, ok := strings.Cut(text, "=")
		switch {
		case !ok || !variableName.MatchString(name):
			return fmt.Errorf("%.80q: write NAME=VALUE,VALUE", text)
		case slices.ContainsFunc(f.matrix, func(a axis) bool { return a.name == name }):
			return fmt.Errorf("%.80q: the variable is in the matrix already", name)
		}
		f.matrix = append(f.matrix, axis{name, strings.Split(values, ",")})
		return nil
	})
	fl.IntVar(&f.maxFailures, "max-failures", 0, "start no more builds once this many have failed (default no limit)")
	grouped(fl, buildGroup)
}

// assignLabel adds LABEL=VALUE to a map, whose labels a VM must all have.
func assignLabel(to map[string]string, text string) error {
	name, value, _ := strings.Cut(text, "=")
	if other, twice := to[name]; twice && other != value {
		return fmt.Errorf("%.80q: no VM has this and %.80q, too", text, name+"="+other)
	}
	return assign(to, text)
}

// assign adds NAME=VALUE to a map.
func assign(to map[string]string, text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return fmt.Errorf("%.80q: write NAME=VALUE", text)
	}
	to[name] = value
	return nil
}

// checkBuilds returns the number of builds of a run with this many FILEs and VMs.
func (f *buildFlags) checkBuilds(files, vms int) (int, error) {
	if f.builds < 1 || f.builds > maxBuilds {
		return 0, fmt.Errorf("--builds %d: use 1 to %d", f.builds, maxBuilds)
	}
	if f.maxFailures < 0 {
		return 0, fmt.Errorf("--max-failures %d: use 1 or more", f.maxFailures)
	}
	total := f.builds
	for _, n := range append([]int{files, vms}, f.sizes()...) {
		if total *= n; total > maxBuilds {
			return 0, fmt.Errorf("more than %d builds: a run has at most so many", maxBuilds)
		}
	}
	return total, nil
}

// sizes returns the number of values of each axis.
func (f *buildFlags) sizes() []int {
	sizes := make([]int, len(f.matrix))
	for i, a := range f.matrix {
		sizes[i] = len(a.values)
	}
	return sizes
}

// combinations returns the combinations of the matrix: one without variables if there is no matrix.
func (f *buildFlags) combinations() [][]*stepmuxv1.Variable {
	all := [][]*stepmuxv1.Variable{nil}
	for _, a := range f.matrix {
		var longer [][]*stepmuxv1.Variable
		for _, vars := range all {
			for _, value := range a.values {
				longer = append(longer, append(slices.Clip(vars), &stepmuxv1.Variable{Key: a.name, Value: value}))
			}
		}
		all = longer
	}
	return all
}

// places returns the IDs of the VMs to run on, or one empty ID for any VM with the labels.
func (f *buildFlags) places(group *instance.Group) ([]string, error) {
	var ids []string
	for _, in := range group.Instances() {
		if instance.HasLabels(in.Labels, f.selected) {
			ids = append(ids, in.ID)
		}
	}
	switch {
	case len(ids) == 0 && len(f.selected) > 0:
		return nil, errors.New("--select: no VM has these labels; see labels in the inventory")
	case f.each:
		return ids, nil
	default:
		return []string{""}, nil
	}
}
