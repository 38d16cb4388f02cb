package expr

// node is a part of an expression. Its numbers called at are places in the text.
type node interface {
	eval(r *run) (Value, error)
}

type (
	// constant is a literal.
	constant struct{ value Value }

	// plain is the text before, between and after expressions.
	plain string

	// name is a name of the scope.
	name struct {
		at   int
		name string
		ref  int // its index in the parser's refs
	}

	// access is base.key[index]...
	access struct {
		base  node
		links []link
	}
	link struct {
		at    int
		key   string // where index is nil
		index node
	}

	// mixed is a text with expressions in it.
	mixed struct {
		at    int
		parts []node
	}

	array struct {
		at    int
		items []node
	}

	object struct {
		at    int
		pairs []pair
	}
	pair struct {
		at         int
		key, value node
	}

	unary struct {
		at      int
		op      string
		operand node
	}

	// chain is first op operand op operand..., of operators of one precedence, from left to right.
	// Chains have no nesting: there is no limit to their length but that of an expression.
	chain struct {
		first node
		rest  []operation
	}
	operation struct {
		at      int
		op      string
		operand node
	}

	call struct {
		at       int
		function string
		argument node
	}
)

// Reference is a place where an expression reads the scope.
type Reference struct {
	// Path is what is read: a name of the scope and the keys that follow it, such as steps, build,
	// outputs, x. It ends before the first index that is not a constant string.
	Path []string
	// Offset is where it stands in the text that was parsed, in bytes.
	Offset int
}
