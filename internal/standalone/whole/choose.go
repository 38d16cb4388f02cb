package whole

import (
	"fmt"
	"slices"

	"github.com/stepmux/stepmux/pipeline"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Choice selects jobs of a pipeline. The zero value selects all of them. The name of a job also means its parallel
// builds.
type Choice struct {
	// Job, if not empty, is the only job that runs, with those that it needs.
	Job string
	// Stages, if not empty, are the only stages that run. Skip are jobs that do not run.
	Stages, Skip []string
	// SkipTriggers leaves out the jobs that start pipelines which cannot run here, also in child pipelines.
	SkipTriggers bool
	// Manual are manual jobs that run, as if somebody had started them.
	Manual []string
	// WaitDelayed says that delayed jobs wait for their time. Otherwise they start at once, with a notice.
	WaitDelayed bool
}

// Choose leaves out the jobs that are not chosen. Those that need them do not wait for them. An error names a job or a
// stage that the pipeline does not have, or a job of Manual that is not manual.
func (p *Pipeline) Choose(c Choice) (err error) {
	if p.original == "" {
		if p.original, err = p.digest(); err != nil {
			return err
		}
	}
	keep := make([]bool, len(p.Jobs))
	for i, j := range p.Jobs {
		keep[i] = len(c.Stages) == 0 || slices.Contains(c.Stages, j.Stage)
	}
	if c.Job != "" || len(c.Stages)+len(c.Skip) > 0 {
		p.Series = "" // it is not the pipeline of its commit
	}
	for _, stage := range c.Stages {
		if !slices.Contains(p.Graph.Stages, stage) {
			return fmt.Errorf("there is no stage%s%s", lang.QuoteName(stage),
				lang.Suggest(stage, p.Graph.Stages, "; there is "+lang.QuoteNames(p.Graph.Stages)))
		}
	}
	for _, name := range c.Skip {
		builds, err := p.named(name)
		if err != nil {
			return err
		}
		for _, i := range builds {
			keep[i] = false
		}
	}
	if err := p.chooseBelow(c, keep); err != nil {
		return err
	}
	for _, name := range c.Manual {
		builds, err := p.named(name)
		if err != nil {
			return err
		}
		for _, i := range builds {
			if !p.Graph.Nodes[i].Manual {
				return fmt.Errorf("the job%s is not manual: it runs without being named", lang.QuoteName(name))
			}
			p.Graph.Nodes[i].Manual = false
		}
	}
	if c.Job != "" {
		if err := p.keepNeeds(c.Job, keep); err != nil {
			return err
		}
	}
	if !c.WaitDelayed {
		p.startDelayed()
	}
	p.keep(keep)
	return nil
}

// chooseBelow chooses the jobs of the pipelines that jobs start.
func (p *Pipeline) chooseBelow(c Choice, keep []bool) error {
	below := Choice{SkipTriggers: c.SkipTriggers, WaitDelayed: c.WaitDelayed}
	for i, j := range p.Jobs {
		if j.Trigger == nil {
			continue
		}
		keep[i] = keep[i] && !(c.SkipTriggers && j.Trigger.Other != "")
		j.Trigger.choice = &below
		if child := j.Trigger.Child; child != nil {
			if err := child.Choose(below); err != nil {
				return err
			}
		}
	}
	return nil
}

// named returns the builds of a job, or the one build of that name.
func (p *Pipeline) named(name string) (builds []int, err error) {
	var names []string
	for i, j := range p.Jobs {
		if j.Name == name || j.Base == name {
			builds = append(builds, i)
		}
		names = append(names, j.Base)
	}
	if len(builds) > 0 {
		return builds, nil
	}
	for _, l := range p.Left {
		if l.Name == name || l.Base == name {
			return nil, fmt.Errorf("the pipeline does not have the job%s (%s)", lang.QuoteName(name), l.Why)
		}
	}
	names = slices.Compact(names) // the builds of a job stand together
	return nil, fmt.Errorf("the pipeline has no job%s%s", lang.QuoteName(name),
		lang.Suggest(name, names, "; it has "+lang.QuoteNames(names)))
}

// keepNeeds keeps a job and those that it needs, directly or by others.
func (p *Pipeline) keepNeeds(name string, keep []bool) error {
	queue, err := p.named(name)
	if err != nil {
		return err
	}
	plan, err := pipeline.New(p.Graph)
	if err != nil {
		return err
	}
	wanted := make([]bool, len(p.Jobs))
	for _, i := range queue {
		wanted[i] = true
		p.Graph.Nodes[i].Manual = false // it was named
	}
	for ; len(queue) > 0; queue = queue[1:] {
		for from := range plan.Sources(queue[0], pipeline.Control|pipeline.Files|pipeline.Values) {
			if !wanted[from] {
				wanted[from] = true
				queue = append(queue, from)
			}
		}
	}
	for i := range keep {
		keep[i] = keep[i] && wanted[i]
	}
	return nil
}

// startDelayed removes the delays of delayed jobs.
func (p *Pipeline) startDelayed() {
	for i := range p.Graph.Nodes {
		if n := &p.Graph.Nodes[i]; n.Delay > 0 {
			p.Jobs[i].Notices = append(p.Jobs[i].Notices,
				fmt.Sprintf("the job starts without its delay of %v; --wait-delayed waits", n.Delay))
			n.Delay = 0
		}
	}
}

// keep leaves out the jobs that are not in the list.
func (p *Pipeline) keep(list []bool) {
	jobs, nodes := p.Jobs, p.Graph.Nodes
	p.Jobs, p.Graph.Nodes = nil, nil
	for i, j := range jobs {
		if !list[i] {
			p.Left = append(p.Left, Left{j.Name, j.Base, j.Stage, "not chosen"})
			continue
		}
		n := nodes[i]
		n.Needs = slices.Clone(n.Needs)
		for k := range n.Needs {
			n.Needs[k].Optional = true // it may be left out
		}
		p.Jobs, p.Graph.Nodes = append(p.Jobs, j), append(p.Graph.Nodes, n)
	}
}
