// Package groupfile reads the key elastic of a manager's file, which describes groups of VMs that come and go.
// docs/elastic.md describes its keys.
package groupfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/instance/elastic"
	"github.com/stepmux/stepmux/instance/elastic/source"
	"github.com/stepmux/stepmux/instance/inventory"
	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/lazyregexp"
	"github.com/stepmux/stepmux/internal/yamltree"
)

// maxUserData bounds the file of user-data-file, in bytes.
const maxUserData = 256 << 10

// Group is a group of VMs, as a file describes it.
type Group struct {
	Policy elastic.Config
	Exec   source.ExecConfig // without Logger
	// Defaults are the values that the VMs have in common.
	Defaults inventory.Defaults
	UserData string
	// Period and ReadyTimeout are those of scaler.Config.
	Period, ReadyTimeout time.Duration
}

// Groups is the value of the key. It is a flagfile.Structured.
type Groups []Group

// String implements pflag.Value, as do the following.
func (g *Groups) String() string { return "" }

// Type returns the name of the type.
func (g *Groups) Type() string { return "groups" }

// Set fails: the value is no text.
func (g *Groups) Set(string) error {
	return errors.New("this is a key of the file of --config: write its keys name, exec and max-instances there")
}

var nameForm = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,31}$`)

var (
	groupKeys = []string{
		"name", "exec", "config", "pass-env", "user-data-file", "defaults", "period", "ready-timeout",
		"max-instances", "capacity", "max-uses", "max-age", "unhealthy-time",
		"throttle", "policies",
	}
	policyKeys = []string{
		"periods", "timezone", "idle-count", "idle-time", "scale-factor", "scale-factor-limit", "preemptive",
	}
)

// Read implements flagfile.Structured.
func (g *Groups) Read(r *yamltree.Reader, n *yaml.Node) {
	items := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		items = r.List(n, "elastic")
	}
	for _, item := range items {
		group := (&reader{r}).group(item)
		is := func(other Group) bool { return other.Exec.Group == group.Exec.Group }
		if slices.ContainsFunc(*g, is) {
			r.Failf(item, "there are two groups %s: give each another name", group.Exec.Group)
		}
		if r.Err != nil {
			return
		}
		*g = append(*g, group)
	}
}

// reader reads one group.
type reader struct{ *yamltree.Reader }

func (r *reader) group(n *yaml.Node) (g Group) {
	const label = "a group of elastic"
	for _, e := range r.Known(r.Mapping(n, label), label, groupKeys) {
		switch e.Key {
		case "name":
			g.Exec.Group = r.String(e.Value, e.Key)
		case "exec":
			g.Exec.Command = r.words(e)
		case "config":
			g.Exec.Settings = r.settings(e)
		case "pass-env":
			g.Exec.PassEnv = append([]string{}, r.texts(e)...)
		case "user-data-file":
			g.UserData = r.file(e)
		case "defaults":
			g.Defaults = inventory.ReadDefaults(r.Reader, e.Value)
		case "period":
			g.Period = r.time(e)
		case "ready-timeout":
			g.ReadyTimeout = r.time(e)
		case "max-instances":
			g.Policy.MaxInstances = r.count(e)
		case "capacity":
			g.Policy.Capacity = r.count(e)
		case "max-uses":
			g.Policy.MaxUses = r.count(e)
		case "max-age":
			g.Policy.MaxAge = r.time(e)
		case "unhealthy-time":
			g.Policy.UnhealthyTime = r.time(e)
		case "throttle":
			r.throttle(e, &g.Policy)
		case "policies":
			for _, item := range r.List(e.Value, e.Key) {
				g.Policy.Rules = append(g.Policy.Rules, r.rule(item))
			}
		}
	}
	r.check(n, &g)
	return g
}

// check checks a group as a whole.
func (r *reader) check(n *yaml.Node, g *Group) {
	switch {
	case r.Err != nil:
	case !nameForm().MatchString(g.Exec.Group):
		r.Failf(n, "elastic: name %.40q: write 1 to 32 of a-z 0-9 -", g.Exec.Group)
	case len(g.Exec.Command) == 0:
		r.Failf(n, "elastic: exec is missing: the program that makes, lists and deletes the VMs")
	case g.Policy.MaxInstances == 0:
		r.Failf(n, "elastic: max-instances is missing: the largest number of VMs")
	}
	if r.Err != nil {
		return
	}
	if _, err := source.NewExec(g.Exec); err != nil {
		r.Failf(n, "elastic %s: %v", g.Exec.Group, err)
	} else if _, err := elastic.New(g.Policy); err != nil {
		r.Failf(n, "elastic %s: %v", g.Exec.Group, err)
	}
}

func (r *reader) rule(n *yaml.Node) (rule elastic.Rule) {
	const label = "a policy"
	for _, e := range r.Known(r.Mapping(n, label), label, policyKeys) {
		switch e.Key {
		case "periods":
			rule.Periods = r.texts(e)
		case "timezone":
			rule.TimeZone = r.String(e.Value, e.Key)
		case "idle-count":
			rule.IdleCount = r.number(e)
		case "idle-time":
			rule.IdleTime = r.time(e)
		case "scale-factor":
			rule.ScaleFactor = r.fraction(e)
		case "scale-factor-limit":
			rule.ScaleFactorLimit = r.number(e)
		case "preemptive":
			on := r.Bool(e.Value, e.Key)
			rule.Preemptive = &on
		}
	}
	return rule
}

func (r *reader) throttle(e yamltree.Entry, to *elastic.Config) {
	for _, e := range r.Known(r.Mapping(e.Value, e.Key), e.Key, []string{"rate", "burst"}) {
		switch e.Key {
		case "rate":
			to.Rate = r.fraction(e)
		case "burst":
			to.Burst = r.count(e)
		}
	}
}

// texts reads a list of texts.
func (r *reader) texts(e yamltree.Entry) (all []string) {
	for _, item := range r.List(e.Value, e.Key) {
		all = append(all, r.String(item, e.Key))
	}
	return all
}

// words reads a program, or a list of a program and its arguments.
func (r *reader) words(e yamltree.Entry) []string {
	if e.Value.Kind == yaml.SequenceNode {
		return r.texts(e)
	}
	return []string{r.String(e.Value, e.Key)}
}

// settings reads a mapping of any form, as JSON.
func (r *reader) settings(e yamltree.Entry) json.RawMessage {
	if e.Value.Kind != yaml.MappingNode {
		r.Failf(e.Value, "config must be a mapping")
		return nil
	}
	text, err := json.Marshal(r.value(e.Value))
	if err != nil {
		r.Failf(e.Value, "config: %v", err)
	}
	return text
}

// value reads a value of any form.
func (r *reader) value(n *yaml.Node) any {
	r.Enter(n)
	defer r.Leave()
	if r.Err != nil {
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		all := map[string]any{}
		for _, e := range r.Mapping(n, "config") {
			all[e.Key] = r.value(e.Value)
		}
		return all
	case yaml.SequenceNode:
		all := []any{}
		for _, item := range r.List(n, "config") {
			all = append(all, r.value(item))
		}
		return all
	default:
		text := r.String(n, "a value of config")
		var v any
		if r.Err == nil && n.Decode(&v) == nil {
			switch v.(type) {
			case bool, int, int64, uint64, float64:
				return v
			}
		}
		return text
	}
}

// file reads the file with the user data.
func (r *reader) file(e yamltree.Entry) string {
	name := r.String(e.Value, e.Key)
	if r.Err != nil {
		return ""
	}
	text, err := boundedfile.ReadBy(os.OpenFile, name, maxUserData)
	if err != nil {
		r.Failf(e.Value, "%s: %v", e.Key, err)
	}
	return string(text)
}

// read reads a value by parse, unless that fails.
func read[T any](r *reader, e yamltree.Entry, parse func(string) (T, error), form string) (v T) {
	text := r.String(e.Value, e.Key)
	if r.Err != nil {
		return v
	}
	v, err := parse(text)
	if err != nil {
		r.Failf(e.Value, "%s %.40q: write %s", e.Key, text, form)
	}
	return v
}

var errForm = errors.New("another form is needed")

func (r *reader) time(e yamltree.Entry) time.Duration {
	return read(r, e, func(text string) (time.Duration, error) {
		d, err := time.ParseDuration(text)
		if err == nil && d <= 0 {
			err = errForm
		}
		return d, err
	}, "a time such as 30s, 5m or 8h")
}

// number reads a number from 0 on, and count one from 1 on.
func (r *reader) number(e yamltree.Entry) int { return r.atLeast(e, 0) }

func (r *reader) count(e yamltree.Entry) int { return r.atLeast(e, 1) }

func (r *reader) atLeast(e yamltree.Entry, least int) int {
	return read(r, e, func(text string) (int, error) {
		n, err := strconv.Atoi(text)
		if err == nil && n < least {
			err = errForm
		}
		return n, err
	}, fmt.Sprintf("a whole number from %d on", least))
}

func (r *reader) fraction(e yamltree.Entry) float64 {
	return read(r, e, func(text string) (float64, error) {
		v, err := strconv.ParseFloat(text, 64)
		if err == nil && !(v > 0 && v <= elastic.MaxVMs) {
			err = errForm
		}
		return v, err
	}, "a number such as 0.5")
}

// Schema implements flagfile.Structured.
func (g *Groups) Schema() map[string]any {
	text := map[string]any{"type": []string{"string", "number"}}
	texts := map[string]any{"type": "array", "items": text}
	number := func(least int) map[string]any { return map[string]any{"type": "integer", "minimum": least} }
	positive := map[string]any{"type": "number", "exclusiveMinimum": 0}
	object := func(keys map[string]any, required ...string) map[string]any {
		s := map[string]any{"type": "object", "additionalProperties": false, "properties": keys}
		if len(required) > 0 {
			s["required"] = required
		}
		return s
	}
	policy := object(map[string]any{
		"periods": texts, "timezone": text, "idle-count": number(0), "idle-time": text, "scale-factor": positive,
		"scale-factor-limit": number(0), "preemptive": map[string]any{"type": "boolean"},
	})
	group := object(map[string]any{
		"name": text, "exec": map[string]any{"oneOf": []any{text, texts}}, "config": map[string]any{"type": "object"},
		"pass-env": texts, "user-data-file": text, "defaults": map[string]any{"type": "object"}, "period": text,
		"ready-timeout": text, "max-instances": number(1), "capacity": number(1), "max-uses": number(1), "max-age": text,
		"unhealthy-time": text,
		"throttle":       object(map[string]any{"rate": positive, "burst": number(1)}),
		"policies":       map[string]any{"type": "array", "items": policy},
	}, "name", "exec", "max-instances")
	return map[string]any{"oneOf": []any{group, map[string]any{"type": "array", "items": group}}}
}
