package inspect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/remote/step/trace"
)

// maxDifferences bounds the differences that are listed; the others are counted.
const maxDifferences = 1000

// Difference is a place where two identities differ.
type Difference struct {
	// Pointer is the place in the identity, as a JSON pointer (RFC 6901): /steps/0/outputs/said.
	Pointer string `json:"pointer"`
	// Step has the names that lead to the step of the difference, as in "outer.inner". It is empty for the job itself.
	Step string `json:"step,omitempty"`
	// Old and New are the values as JSON, cut to a readable length; empty if there is no value. If one trace masks the
	// value, neither is shown.
	Old string `json:"old,omitempty"`
	New string `json:"new,omitempty"`

	place string // the pointer in a readable form, from the step on
}

// String returns the difference in words: step one: outputs.said: "a" -> "b".
func (d Difference) String() string {
	where := "job"
	if d.Step != "" {
		where = "step " + d.Step
	}
	switch {
	case d.Old == "":
		return fmt.Sprintf("%s: %s: new: %s", where, d.place, d.New)
	case d.New == "":
		return fmt.Sprintf("%s: %s: gone: %s", where, d.place, d.Old)
	}
	return fmt.Sprintf("%s: %s: %s -> %s", where, d.place, d.Old, d.New)
}

// Comparison is the result of Compare.
type Comparison struct {
	// Differences are in the order of the first trace's canonical form, at most 1000 of them.
	Differences []Difference `json:"differences"`
	// More is the number of differences beyond these.
	More int `json:"more,omitempty"`
	// Unknown is how many values are masked in both traces by different salts, so that they cannot be compared.
	Unknown int `json:"unknown,omitempty"`
}

// Same reports whether no difference was found.
func (c *Comparison) Same() bool { return len(c.Differences) == 0 }

// Ignore leaves parts out of a comparison.
type Ignore struct {
	// Logs leaves out the output of the steps.
	Logs bool
	// Runtime leaves out the machine, the program that ran the job, and the digests of the programs that steps ran.
	Runtime bool
}

// Compare compares the identities of two traces.
func Compare(a, b *trace.Trace, ignore Ignore) (*Comparison, error) {
	c := &comparer{ignore: ignore, result: &Comparison{Differences: []Difference{}}}
	c.sameSalt = a.Secrets != nil && b.Secrets != nil && bytes.Equal(a.Secrets.Salt, b.Secrets.Salt)
	var trees [2]any
	for i, t := range []*trace.Trace{a, b} {
		canonical, err := t.Identity.Canonical()
		if err != nil {
			return nil, err
		}
		d := json.NewDecoder(bytes.NewReader(canonical))
		d.UseNumber()
		if err := d.Decode(&trees[i]); err != nil {
			return nil, fmt.Errorf("read identity: %w", err)
		}
		if a.Schema != b.Schema { // only SchemaV2 has it
			identity, _ := trees[i].(map[string]any)
			job, _ := identity["job"].(map[string]any)
			delete(job, "text")
		}
	}
	c.compare(&position{}, trees[0], trees[1])
	return c.result, nil
}

type comparer struct {
	ignore   Ignore
	sameSalt bool
	result   *Comparison
}

// absent stands for a missing value.
type absent struct{}

func (c *comparer) compare(p *position, old, now any) {
	if c.ignored(p) || p.isExitCode() && isNoFailure(old) && isNoFailure(now) {
		return
	}
	oldMask, newMask := maskOf(old), maskOf(now)
	if oldMask != "" || newMask != "" {
		c.compareMasked(p, old, now, oldMask, newMask)
		return
	}
	switch o := old.(type) {
	case map[string]any:
		if n, ok := now.(map[string]any); ok {
			c.compareObjects(p, o, n)
			return
		}
	case []any:
		if n, ok := now.([]any); ok {
			c.compareLists(p, o, n)
			return
		}
	default:
		if old == now { // old is a scalar, so == does not panic
			return
		}
	}
	c.add(p, shown(old), shown(now))
}

// isNoFailure reports whether an exit code is 0 or absent: older traces also have 0 if no process ended.
func isNoFailure(code any) bool { return code == absent{} || code == json.Number("0") }

func (c *comparer) compareObjects(p *position, old, now map[string]any) {
	member := func(object map[string]any, key string) any {
		if v, is := object[key]; is {
			return v
		}
		return absent{}
	}
	all := maps.Clone(old)
	maps.Copy(all, now)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		c.compare(p.in(key), member(old, key), member(now, key))
	}
}

func (c *comparer) compareLists(p *position, old, now []any) {
	item := func(list []any, i int) any {
		if i < len(list) {
			return list[i]
		}
		return absent{}
	}
	for i := range max(len(old), len(now)) {
		o, n := item(old, i), item(now, i)
		c.compare(p.at(i, o, n), o, n)
	}
}

// compareMasked compares two values if at least one is masked.
func (c *comparer) compareMasked(p *position, old, now any, oldMask, newMask string) {
	switch {
	case oldMask == "":
		c.add(p, unmasked(old), "[MASKED]")
	case newMask == "":
		c.add(p, "[MASKED]", unmasked(now))
	case !c.sameSalt:
		c.result.Unknown++
	case oldMask != newMask:
		c.add(p, "[MASKED]", "[MASKED] (another value)")
	}
}

// unmasked returns the words for a value that the other trace masks: it may be the secret.
func unmasked(v any) string {
	if v == (absent{}) {
		return ""
	}
	return "(not masked)"
}

// maskOf returns the HMAC of a masked value, and "" for any other.
func maskOf(v any) string {
	m, ok := v.(map[string]any)
	if !ok || m["masked"] != true {
		return ""
	}
	hmac, _ := m["hmac"].(string)
	return hmac
}

// ignored reports whether the value at p is left out.
func (c *comparer) ignored(p *position) bool {
	switch {
	case c.ignore.Logs && p.keys == 1 && p.key == "logs":
		return p.ofStep()
	case !c.ignore.Runtime:
		return false
	case p.keys == 1 && p.key == "runtime":
		return !p.ofStep()
	case p.keys == 3 && p.key == "digest" && (p.outer.key == "program" || p.outer.key == "interpreter"):
		return p.outer.outer.key == "exec" && p.ofStep()
	default:
		return false
	}
}

func (c *comparer) add(p *position, old, now string) {
	if len(c.result.Differences) >= maxDifferences {
		c.result.More++
		return
	}
	d := Difference{Old: old, New: now}
	p.write(&d)
	c.result.Differences = append(c.result.Differences, d)
}

// maxShown bounds the shown part of a value, in bytes.
const maxShown = 200

// shown returns v as it is shown.
func shown(v any) string {
	switch v := v.(type) {
	case absent:
		return ""
	case string:
		return cut(strconv.QuoteToGraphic(v))
	}
	data, err := json.Marshal(hidden(v))
	if err != nil {
		return "?"
	}
	return one(string(data))
}

// hidden returns v with its masked values in short form.
func hidden(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if maskOf(v) != "" {
			return "[MASKED]"
		}
		out := make(map[string]any, len(v))
		for key, item := range v {
			out[key] = hidden(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = hidden(item)
		}
		return out
	default:
		return v
	}
}

func cut(text string) string {
	if len(text) <= maxShown {
		return text
	}
	return strings.ToValidUTF8(text[:maxShown], "") + "... (" + strconv.Itoa(len(text)) + " bytes)"
}
