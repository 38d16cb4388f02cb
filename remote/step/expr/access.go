package expr

import (
	"math"
	"strings"

	"github.com/stepmux/stepmux/internal/spell"
)

func (n *access) eval(r *run) (Value, error) {
	v, err := n.base.eval(r)
	if err != nil {
		return Value{}, err
	}
	for i := range n.links {
		if v, err = n.follow(r, v, i); err != nil {
			return Value{}, err
		}
	}
	return v, nil
}

// follow returns the value of link i in v.
func (n *access) follow(r *run, v Value, i int) (Value, error) {
	l := n.links[i]
	if l.index == nil {
		return n.child(r, v, i, l.key, true)
	}
	index, err := l.index.eval(r)
	if err != nil {
		return Value{}, err
	}
	switch index.kind {
	case String:
		v, err = n.child(r, v, i, index.str, false)
	case Number:
		v, err = n.item(r, v, i, index)
	default:
		err = r.errorAt(l.at, "the index is %s, and must be a number or a string", index.kind.phrase())
	}
	return v.sealIf(index.Sensitive()), err
}

// child returns the value of v at key. written tells that the key is written in the expression. A computed key may be a
// secret.
func (n *access) child(r *run, v Value, i int, key string, written bool) (Value, error) {
	if v.kind != Object {
		err := r.errorAt(n.links[i].at, "%s is %s, which has no keys", n.path(i), v.kind.phrase())
		if v.kind == Array {
			return Value{}, err.withHint("read an item by its number: [0]")
		}
		return Value{}, err
	}
	if child, ok := v.Get(key); ok {
		return child, nil
	}
	if !written {
		return Value{}, r.errorAt(n.links[i].at, "the key of %s was not found", n.path(i))
	}
	err := r.errorAt(n.links[i].at, "%s was not found", n.path(i+1))
	if v.sealed {
		return Value{}, err
	}
	for _, k := range v.list.keys {
		if strings.HasPrefix(k, key+"-") {
			return Value{}, err.withHint("write a key with a hyphen as [%q]", abbreviate(k))
		}
	}
	if near := spell.Nearest(key, v.list.keys); near != "" {
		return Value{}, err.withHint("did you mean %s?", near)
	}
	return Value{}, err
}

// item returns the value of v at a number.
func (n *access) item(r *run, v Value, i int, index Value) (Value, error) {
	at := n.links[i].at
	switch {
	case v.kind == Object:
		return Value{}, r.errorAt(at, "%s is an object, and the index a number", n.path(i)).
			withHint("convert the index with str()")
	case v.kind != Array:
		return Value{}, r.errorAt(at, "%s is %s, which has no items", n.path(i), v.kind.phrase())
	case index.num != math.Trunc(index.num):
		return Value{}, r.errorAt(at, "the index is not an integer")
	case index.num < 0 || index.num >= float64(v.Len()):
		return Value{}, r.errorAt(at, "the item of %s was not found", n.path(i)).
			withHint("the index is outside of the array; the first item is [0]")
	}
	return v.Index(int(index.num)), nil
}

// path returns the name of the value after the first links, for errors.
func (n *access) path(links int) string {
	base, ok := n.base.(*name)
	if !ok {
		return "the value"
	}
	var b strings.Builder
	b.WriteString(abbreviate(base.name))
	for _, l := range n.links[:links] {
		switch {
		case b.Len() > 2*maxQuoted:
			return "the value"
		case l.index != nil:
			b.WriteString("[...]")
		case isWord(l.key):
			b.WriteString("." + abbreviate(l.key))
		default:
			b.WriteString("[" + quote(l.key) + "]")
		}
	}
	return b.String()
}
