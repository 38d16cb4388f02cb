package inspect

import (
	"slices"
	"strconv"
	"strings"
)

// position is a place in an identity: a key or an index, and the position around it.
type position struct {
	outer *position // nil for the identity itself
	key   string    // a JSON pointer escapes it
	item  bool      // of a list
	step  string    // the name of the step at this position, or empty
	keys  int       // number of keys from the step, or from the identity, to here
}

// in returns the place of the member key of the object at p.
func (p *position) in(key string) *position {
	return &position{outer: p, key: key, keys: p.keys + 1}
}

// at returns the place of an item of the list at p.
func (p *position) at(i int, old, now any) *position {
	q := &position{outer: p, key: strconv.Itoa(i), item: true, keys: p.keys + 1}
	if p.keys == 1 && p.key == "steps" { // steps of the job or of a step, not of a definition
		q.step, q.keys = stepName(old, now, i), 0
	}
	return q
}

// ofStep reports whether p is in a step, or is one.
func (p *position) ofStep() bool {
	for ; p != nil; p = p.outer {
		if p.step != "" {
			return true
		}
	}
	return false
}

// isExitCode reports whether p is the exit code of the job, of a step or of its command.
func (p *position) isExitCode() bool {
	return p.key == "exit_code" && (p.keys == 1 || p.keys == 2 && p.outer.key == "exec" && p.ofStep())
}

// write sets the place of d.
func (p *position) write(d *Difference) {
	var path []*position
	for at := p; at.outer != nil; at = at.outer {
		path = append(path, at)
	}
	slices.Reverse(path)
	var pointer, place strings.Builder
	var steps []string
	for _, at := range path {
		pointer.WriteString("/" + pointerEscapes.Replace(at.key))
		switch {
		case at.step != "":
			steps = append(steps, at.step)
			place.Reset()
		case at.item:
			place.WriteString("[" + at.key + "]")
		case !plain(at.key):
			place.WriteString("[" + cut(strconv.QuoteToGraphic(at.key)) + "]")
		case place.Len() > 0:
			place.WriteString("." + at.key)
		default:
			place.WriteString(at.key)
		}
	}
	d.Pointer, d.Step, d.place = pointer.String(), strings.Join(steps, "."), place.String()
	if d.place == "" {
		d.place = "the step"
	}
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

func stepName(old, now any, i int) string {
	for _, v := range []any{old, now} {
		if m, ok := v.(map[string]any); ok {
			if name, _ := m["name"].(string); plain(name) {
				return name
			}
		}
	}
	return strconv.Itoa(i)
}

// plain reports whether text can stand in a place without quotes.
func plain(text string) bool {
	for _, c := range text {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '_' && c != '-' {
			return false
		}
	}
	return text != ""
}
