package expr

import (
	"math"
	"strings"
)

func (n *access) eval(r *run) Value {
	v := n.base.eval(r)
	for i := range n.links {
		v = n.follow(r, v, i)
	}
	return v
}

// follow returns the value of link i in v.
func (n *access) follow(r *run, v Value, i int) Value {
	l := n.links[i]
	if l.index == nil {
		return n.child(r, v, i, l.key, true)
	}
	index := l.index.eval(r)
	switch index.kind {
	case String:
		v = n.child(r, v, i, index.str, false)
	case Number:
		v = n.item(r, v, i, index)
	default:
		panic(r.errorAt(l.at, "the index is %s, and must be a number or a string", index.kind.phrase()))
	}
	return v.MarkLike(index)
}

// child returns the value of v at key. written says that the key stands in the expression. A computed key may be a
// secret, so errors do not quote it.
func (n *access) child(r *run, v Value, i int, key string, written bool) Value {
	at := n.links[i].at
	child, found := v.Get(key)
	switch {
	case v.kind == Array:
		panic(r.errorAt(at, "%s is %s, which has no keys", n.path(i), v.kind.phrase()).
			withHint("read an item by its number: [0]"))
	case v.kind != Object:
		panic(r.errorAt(at, "%s is %s, which has no keys", n.path(i), v.kind.phrase()))
	case found:
		return child
	case !written:
		panic(r.errorAt(at, "the key of %s was not found", n.path(i)))
	}
	err := r.errorAt(at, "%s was not found", n.path(i+1))
	if v.sealed != public {
		panic(err)
	}
	for _, k := range v.list.keys {
		if strings.HasPrefix(k, key+"-") {
			panic(err.withHint("write a key with a hyphen as [%q]", Abbreviate(k)))
		}
	}
	panic(err.withNearest(key, v.list.keys, ""))
}

// item returns the value of v at a number.
func (n *access) item(r *run, v Value, i int, index Value) Value {
	at := n.links[i].at
	switch {
	case v.kind == Object:
		panic(r.errorAt(at, "%s is an object, and the index a number", n.path(i)).withHint("convert the index with str()"))
	case v.kind != Array:
		panic(r.errorAt(at, "%s is %s, which has no items", n.path(i), v.kind.phrase()))
	case index.num != math.Trunc(index.num):
		panic(r.errorAt(at, "the index is not an integer"))
	case index.num < 0 || index.num >= float64(v.Len()):
		panic(r.errorAt(at, "the item of %s was not found", n.path(i)).
			withHint("the index is outside of the array; the first item is [0]"))
	}
	return v.Index(int(index.num))
}

// path returns the name of the value after the first links, for errors.
func (n *access) path(links int) string {
	base, ok := n.base.(*name)
	if !ok {
		return "the value"
	}
	var b strings.Builder
	b.WriteString(Abbreviate(base.name))
	for _, l := range n.links[:links] {
		switch {
		case b.Len() > 2*maxQuoted:
			return "the value"
		case l.index != nil:
			b.WriteString("[...]")
		case isWord(l.key):
			b.WriteString("." + Abbreviate(l.key))
		default:
			b.WriteString("[" + quote(l.key) + "]")
		}
	}
	return b.String()
}
