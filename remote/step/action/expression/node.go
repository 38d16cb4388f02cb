package expression

import "slices"

// node is a part of an expression.
type node interface {
	eval(e *evaluation) (Value, error)
	below() []node
}

type (
	literal    struct{ value Value }
	named      struct{ name string }
	grouped    struct{ of node }
	negation   struct{ of node }
	comparison struct {
		op          string
		left, right node
	}
	// logic is a chain of && or ||.
	logic struct {
		op       string
		operands []node
	}
	// index is an access to a property or an item or, if by is nil, to all of them.
	index struct{ of, by node }
	call  struct {
		name    string
		args    []node
		builtin func(*evaluation, []node) (Value, error) // nil for a function of the scope
	}
)

func (*literal) below() []node      { return nil }
func (*named) below() []node        { return nil }
func (n *grouped) below() []node    { return n.of.below() } // parentheses do not count as a level
func (n *negation) below() []node   { return []node{n.of} }
func (n *comparison) below() []node { return []node{n.left, n.right} }
func (n *logic) below() []node      { return n.operands }
func (n *call) below() []node       { return n.args }

func (n *index) below() []node {
	if n.by == nil {
		return []node{n.of, &literal{}}
	}
	return []node{n.of, n.by}
}

// depth returns how deep n is nested.
func depth(n node) int {
	deepest := 0
	for _, b := range n.below() {
		deepest = max(deepest, depth(b))
	}
	return deepest + 1
}

func calls(n node, functions []string) bool {
	if c, ok := n.(*call); ok && slices.Contains(functions, c.name) {
		return true
	}
	return slices.ContainsFunc(n.below(), func(b node) bool { return calls(b, functions) })
}

// paths calls add for each path below the context name in n.
func paths(n node, name string, add func([]string)) {
	if path, ok := pathOf(n, name); ok {
		add(path)
		return
	}
	for _, b := range n.below() {
		paths(b, name, add)
	}
}

// pathOf returns the path below the context name that n is, if it is one.
func pathOf(n node, name string) (path []string, ok bool) {
	switch n := n.(type) {
	case *named:
		return nil, n.name == name
	case *index:
		path, ok = pathOf(n.of, name)
		l, isLiteral := n.by.(*literal)
		if !ok || !isLiteral || l.value.Kind() != "String" {
			return nil, false
		}
		return append(path, l.value.Text()), true
	default:
		return nil, false
	}
}

const (
	// maxMemory bounds the results of an expression, in bytes.
	maxMemory = 10 << 20
	// maxTemplate bounds the results of all expressions in a text, and maxCompared the texts that they compare, in bytes.
	maxTemplate, maxCompared = 10 * maxMemory, 128 << 20
)

// evaluation computes the expressions of a text.
type evaluation struct {
	scope    Scope
	spent    int // by the present expression
	compared int // by all of them
}

// spend counts the bytes of a new text, or of the items of a new list.
func (e *evaluation) spend(bytes int) error {
	if e.spent += bytes; e.spent > maxMemory {
		return mistakef("The maximum allowed memory size was exceeded: the expression computes more than %d bytes", maxMemory)
	}
	return nil
}

// compare counts the bytes of two values, before they are compared or one is looked for: a text may be compared with
// many others.
func (e *evaluation) compare(a, b Value) error {
	left, _ := a.any.(string)
	right, _ := b.any.(string)
	if e.compared += len(left) + len(right); e.compared > maxCompared {
		return mistakef("The expressions compare texts of more than %d bytes in all", maxCompared)
	}
	return nil
}

func (n *literal) eval(*evaluation) (Value, error) { return n.value, nil }

func (n *named) eval(e *evaluation) (Value, error) { return e.scope.Values[n.name], nil }

func (n *grouped) eval(e *evaluation) (Value, error) { return n.of.eval(e) }

func (n *negation) eval(e *evaluation) (Value, error) {
	v, err := n.of.eval(e)
	return Boolean(!v.Truthy()), err
}

func (n *logic) eval(e *evaluation) (v Value, err error) {
	for _, operand := range n.operands {
		if v, err = operand.eval(e); err != nil || v.Truthy() == (n.op == "||") {
			break
		}
	}
	return v, err
}

func (n *comparison) eval(e *evaluation) (Value, error) {
	left, err := n.left.eval(e)
	if err != nil {
		return Value{}, err
	}
	right, err := n.right.eval(e)
	if err == nil {
		err = e.compare(left, right)
	}
	if err != nil {
		return Value{}, err
	}
	switch n.op {
	case "==":
		return Boolean(equal(left, right)), nil
	case "!=":
		return Boolean(!equal(left, right)), nil
	case ">":
		return Boolean(greater(left, right)), nil
	case ">=":
		return Boolean(equal(left, right) || greater(left, right)), nil
	case "<":
		return Boolean(less(left, right)), nil
	default:
		return Boolean(equal(left, right) || less(left, right)), nil
	}
}

func (n *index) eval(e *evaluation) (Value, error) {
	of, err := n.of.eval(e)
	if err != nil {
		return Value{}, err
	}
	if n.by == nil {
		return of.all(e)
	}
	by, err := n.by.eval(e)
	if err == nil {
		err = e.compare(of, by)
	}
	if err != nil {
		return Value{}, err
	}
	list, ok := of.any.(*array)
	if !ok || !list.filtered {
		found, _ := of.at(by)
		return found, nil
	}
	found := &array{filtered: true}
	for _, item := range list.items {
		if err := e.compare(of, by); err != nil {
			return Value{}, err
		}
		if v, there := item.at(by); there {
			found.items = append(found.items, v)
		}
	}
	return Value{found}, e.spend(valueSize * len(found.items))
}

func (n *call) eval(e *evaluation) (Value, error) {
	if n.builtin != nil {
		return n.builtin(e, n.args)
	}
	args, err := e.all(n.args)
	if err != nil {
		return Value{}, err
	}
	return e.scope.Functions[n.name].Call(args)
}

// all computes all nodes.
func (e *evaluation) all(nodes []node) ([]Value, error) {
	values := make([]Value, len(nodes))
	for i, n := range nodes {
		var err error
		if values[i], err = n.eval(e); err != nil {
			return nil, err
		}
	}
	return values, nil
}
