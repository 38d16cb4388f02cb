package expr

func (p *parser) array() (node, error) {
	n := &array{at: p.pos}
	p.pos++
	for !p.accept("]") {
		item, err := p.expression()
		if err != nil {
			return nil, err
		}
		n.items = append(n.items, item)
		if !p.accept(",") {
			return n, p.expect("]")
		}
	}
	return n, nil
}

func (p *parser) object() (node, error) {
	n := &object{at: p.pos}
	p.pos++
	seen := map[string]bool{}
	for !p.accept("}") {
		pr, err := p.pair()
		if err != nil {
			return nil, err
		}
		if c, ok := pr.key.(*constant); ok && c.value.kind == String {
			if seen[c.value.str] {
				return nil, p.errorAt(pr.at, "the key %s is given twice", quote(c.value.str))
			}
			seen[c.value.str] = true
		}
		n.pairs = append(n.pairs, pr)
		if !p.accept(",") {
			return n, p.expect("}")
		}
	}
	return n, nil
}

// pair reads key: value.
func (p *parser) pair() (pair, error) {
	p.skipSpace()
	pr := pair{at: p.pos}
	var err error
	if pr.key, err = p.key(); err != nil {
		return pr, err
	}
	if err := p.expect(":"); err != nil {
		return pr, err
	}
	pr.value, err = p.expression()
	return pr, err
}

func (p *parser) key() (node, error) {
	switch c := p.peek(); {
	case c == '"', c == '\'', c == '(':
		return p.primary()
	case isLetter(c):
		at := p.pos
		word := p.word()
		if _, ok := literals[word]; ok {
			return nil, p.errorAt(at, "%s is not a string, and a key must be one", word).withHint("write %q", word)
		}
		return &constant{text(word)}, nil
	default:
		return nil, p.unexpected("a key").withHint("a key is a name, a string, or an expression in parentheses")
	}
}
