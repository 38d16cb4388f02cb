package expression

import "strings"

const (
	// maxLength bounds an expression, in bytes.
	maxLength = 21_000
	// maxDepth bounds the nesting of an expression.
	maxDepth = 50
)

// Scope has the contexts and the functions that an expression can use in addition to the built-in ones. Their names are
// in lower case: expressions ignore the case.
type Scope struct {
	Values    map[string]Value
	Functions map[string]Function
}

// Function is a function that the caller of an expression provides.
type Function struct {
	// Min and Max bound the number of its arguments.
	Min, Max int
	Call     func(args []Value) (Value, error)
}

// parse parses an expression. Names that are not in s are mistakes.
func parse(text string, s Scope) (node, error) {
	text = strings.TrimSpace(text)
	if len(text) > maxLength {
		return nil, mistakef("Exceeded max expression length %d", maxLength)
	}
	p := &parser{lexer: lexer{text: text}, scope: s}
	if err := p.advance(); err != nil {
		return nil, err
	}
	if p.tok.kind == tokenEnd { // an empty expression is null
		return &literal{}, nil
	}
	root, err := p.binary(0)
	if err != nil {
		return nil, err
	}
	if p.tok.kind != tokenEnd {
		return nil, p.unexpected()
	}
	if depth(root) > maxDepth {
		return nil, mistakef("Exceeded max expression depth %d", maxDepth)
	}
	return root, nil
}

// parser reads an expression by recursive descent.
type parser struct {
	lexer
	scope Scope
	tok   token
	prev  token // the one before tok
	open  int   // calls of operand under way
}

func (p *parser) advance() (err error) {
	p.prev = p.tok
	p.tok, err = p.next()
	return err
}

func (p *parser) unexpected() error {
	if p.tok.kind == tokenEnd {
		return at(p.text, p.prev.offset, "Unexpected end of expression: '%.160s'", p.prev.text)
	}
	return at(p.text, p.tok.offset, "Unexpected symbol: '%.160s'", p.tok.text)
}

// levels are the binary operators by precedence, the loosest first.
var levels = [][]string{{"||"}, {"&&"}, {"==", "!="}, {">", ">=", "<", "<="}}

// symbol returns the current token if it is one of symbols, and "" otherwise.
func (p *parser) symbol(symbols ...string) string {
	if p.tok.kind == tokenSymbol {
		for _, s := range symbols {
			if p.tok.text == s {
				return s
			}
		}
	}
	return ""
}

// binary parses operators of a level and of tighter ones.
func (p *parser) binary(level int) (node, error) {
	if level == len(levels) {
		return p.unary()
	}
	left, err := p.binary(level + 1)
	for err == nil {
		op := p.symbol(levels[level]...)
		if op == "" {
			return left, nil
		}
		if err = p.advance(); err != nil {
			break
		}
		var right node
		if right, err = p.binary(level + 1); err != nil {
			break
		}
		if l, ok := left.(*logic); ok && l.op == op { // a chain is one node
			l.operands = append(l.operands, right)
			continue
		}
		if level < 2 {
			left = &logic{op, []node{left, right}}
		} else {
			left = &comparison{op, left, right}
		}
	}
	return nil, err
}

func (p *parser) unary() (node, error) {
	negations := 0
	for ; p.symbol("!") != ""; negations++ {
		if err := p.advance(); err != nil {
			return nil, err
		}
	}
	if p.open += negations; p.open > 2*maxDepth {
		return nil, mistakef("Exceeded max expression depth %d", maxDepth)
	}
	n, err := p.operand()
	p.open -= negations
	for range negations {
		n = &negation{n}
	}
	return n, err
}

// operand parses a value and the indices after it.
func (p *parser) operand() (node, error) {
	if p.open++; p.open > 2*maxDepth {
		return nil, mistakef("Exceeded max expression depth %d", maxDepth)
	}
	defer func() { p.open-- }()
	t := p.tok
	var n node
	var err error
	switch {
	case t.kind == tokenLiteral:
		return &literal{t.value}, p.advance()
	case t.kind == tokenName:
		name := strings.ToLower(t.text)
		if _, known := p.scope.Values[name]; !known {
			return nil, at(p.text, t.offset, "Unrecognized named-value: '%.160s'", t.text)
		}
		n, err = &named{name}, p.advance()
	case t.kind == tokenFunction:
		n, err = p.call(t)
	case p.symbol("(") != "":
		n, err = p.group()
	default:
		return nil, p.unexpected()
	}
	for err == nil && p.symbol(".", "[") != "" {
		n, err = p.index(n)
	}
	return n, err
}

func (p *parser) group() (node, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	n, err := p.binary(0)
	if err == nil {
		err = p.expect(")")
	}
	if l, ok := n.(*logic); ok { // parentheses separate it from a chain around it
		n = &logic{l.op, l.operands[:len(l.operands):len(l.operands)]}
		return &grouped{n}, err
	}
	return n, err
}

func (p *parser) expect(symbol string) error {
	if p.symbol(symbol) == "" {
		return p.unexpected()
	}
	return p.advance()
}

// index parses .name, .*, [index] or [*] after n.
func (p *parser) index(n node) (node, error) {
	isDot := p.symbol(".") != ""
	if err := p.advance(); err != nil {
		return nil, err
	}
	switch {
	case p.symbol("*") != "":
		n = &index{of: n}
		if err := p.advance(); err != nil || isDot {
			return n, err
		}
		return n, p.expect("]")
	case isDot && p.tok.kind == tokenProperty:
		return &index{of: n, by: &literal{String(p.tok.text)}}, p.advance()
	case isDot:
		return nil, p.unexpected()
	}
	by, err := p.binary(0)
	if err == nil {
		err = p.expect("]")
	}
	return &index{of: n, by: by}, err
}

// call parses the arguments of a function.
func (p *parser) call(name token) (node, error) {
	f, known := builtins[strings.ToLower(name.text)]
	if !known {
		var given Function
		if given, known = p.scope.Functions[strings.ToLower(name.text)]; !known {
			return nil, at(p.text, name.offset, "Unrecognized function: '%.160s'", name.text)
		}
		f = builtin{min: given.Min, max: given.Max}
	}
	c := &call{name: strings.ToLower(name.text), builtin: f.call}
	err := p.advance()
	if err == nil {
		err = p.expect("(")
	}
	for err == nil && p.symbol(")") == "" {
		if len(c.args) > 0 {
			if err = p.expect(","); err != nil {
				break
			}
		}
		var arg node
		arg, err = p.binary(0)
		c.args = append(c.args, arg)
	}
	switch {
	case err != nil:
		return nil, err
	case len(c.args) < f.min:
		return nil, at(p.text, name.offset, "Too few parameters supplied: '%.160s'", name.text)
	case len(c.args) > f.max:
		return nil, at(p.text, name.offset, "Too many parameters supplied: '%.160s'", name.text)
	case c.name == "case" && len(c.args)%2 == 0:
		return nil, at(p.text, name.offset, "Even number of parameters supplied, requires an odd number of parameters: '%s'",
			name.text)
	}
	return c, p.advance()
}
