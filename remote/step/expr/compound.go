package expr

func (p *parser) array() node {
	n := &array{at: p.pos}
	p.pos++
	for !p.accept("]") {
		n.items = append(n.items, p.expression())
		if !p.accept(",") {
			p.expect("]")
			break
		}
	}
	return n
}

func (p *parser) object() node {
	n := &object{at: p.pos}
	p.pos++
	seen := map[string]bool{}
	for !p.accept("}") {
		pr := p.pair()
		if c, ok := pr.key.(*constant); ok && c.value.kind == String {
			if seen[c.value.str] {
				panic(p.errorAt(pr.at, "the key %s is given twice", quote(c.value.str)))
			}
			seen[c.value.str] = true
		}
		n.pairs = append(n.pairs, pr)
		if !p.accept(",") {
			p.expect("}")
			break
		}
	}
	return n
}

// pair reads key: value.
func (p *parser) pair() pair {
	p.skipSpace()
	pr := pair{at: p.pos}
	pr.key = p.key()
	p.expect(":")
	pr.value = p.expression()
	return pr
}

func (p *parser) key() node {
	switch c := p.peek(); {
	case c == '"', c == '\'', c == '(':
		return p.primary()
	case isLetter(c):
		at := p.pos
		word := p.word()
		if _, ok := literals[word]; ok {
			panic(p.errorAt(at, "%s is not a string, and a key must be one", word).withHint("write %q", word))
		}
		return &constant{text(word)}
	default:
		panic(p.unexpected("a key").withHint("a key is a name, a string, or an expression in parentheses"))
	}
}
