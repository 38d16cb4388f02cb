package expr

// node is a part of an expression. The field at of a node is its offset in the text.
type node interface {
	eval(r *run) Value
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
		key   string // if index is nil
		index node
	}

	// mixed is a text with expressions.
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

	// unary is op operand.
	unary struct{ operation }

	// chain is first op operand op operand..., with operators of one precedence, from left to right. It does not nest,
	// so it may be as long as the expression.
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

// Reference is a use of a name of the scope in an expression.
type Reference struct {
	// Path is the name and the keys after it, such as steps, build, outputs, x. It ends before the first index that is
	// not a constant string.
	Path []string
	// Offset is its place in the parsed text, in bytes.
	Offset int
}
