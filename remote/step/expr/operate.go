package expr

import "math"

func (n *unary) eval(r *run) Value {
	v := n.operand.eval(r)
	if n.op == "!" {
		return boolean(!v.Truthy()).MarkLike(v)
	}
	if v.kind != Number {
		panic(r.errorAt(n.at, "%s takes a number, not %s", n.op, v.kind.phrase()))
	}
	if n.op == "-" {
		v.num = -v.num
	}
	return v
}

func (n *chain) eval(r *run) Value {
	v := n.first.eval(r)
	for _, o := range n.rest {
		v = o.apply(r, v)
	}
	return v
}

// apply returns left op operand. && and || return left if it decides, and otherwise the operand. The result is
// sensitive if left is, because the choice reveals something about left.
func (o operation) apply(r *run, left Value) Value {
	if o.op == "||" && left.Truthy() || o.op == "&&" && !left.Truthy() {
		return left
	}
	right := o.operand.eval(r)
	if o.op == "||" || o.op == "&&" {
		return right.MarkLike(left)
	}
	return o.compute(r, left, right).MarkLike(left).MarkLike(right)
}

func (o operation) compute(r *run, left, right Value) Value {
	r.charge(o.at, left.size()+right.size())
	switch o.op {
	case "==":
		return boolean(equal(left, right))
	case "!=":
		return boolean(!equal(left, right))
	case "<", "<=", ">", ">=":
		return o.compare(r, left, right)
	}
	takes := "two numbers"
	if o.op == "+" {
		takes = "two numbers or two strings"
		if left.kind == String && right.kind == String {
			if len(left.str)+len(right.str) > maxSize {
				r.check(o.at, errSize)
			}
			return text(left.str + right.str)
		}
	}
	if left.kind != Number || right.kind != Number {
		panic(r.errorAt(o.at, "%s takes %s, not %s and %s", o.op, takes, left.kind.phrase(), right.kind.phrase()).
			withHint("%s", hintFor(left, right)))
	}
	return o.arithmetic(r, left.num, right.num)
}

func (o operation) compare(r *run, left, right Value) Value {
	c, err := order(left, right)
	if err != nil {
		panic(r.errorAt(o.at, "%s: %s", o.op, err.Error()).withHint("%s", hintFor(left, right)))
	}
	switch o.op {
	case "<":
		return boolean(c < 0)
	case "<=":
		return boolean(c <= 0)
	case ">":
		return boolean(c > 0)
	default:
		return boolean(c >= 0)
	}
}

// hintFor returns a hint at the conversion that makes the operands fit.
func hintFor(left, right Value) string {
	if left.kind == String || right.kind == String {
		return "convert with num() or str()"
	}
	return ""
}

func (o operation) arithmetic(r *run, a, b float64) Value {
	var f float64
	switch o.op {
	case "+":
		f = a + b
	case "-":
		f = a - b
	case "*":
		f = a * b
	case "/", "%":
		if b == 0 {
			panic(r.errorAt(o.at, "%s: division by zero", o.op))
		}
		if f = a / b; o.op == "%" {
			f = math.Mod(a, b)
		}
	default:
		panic("BUG: unknown operator: " + o.op)
	}
	if math.IsInf(f, 0) {
		panic(r.errorAt(o.at, "%s: the result is too large for a number", o.op))
	}
	return number(f)
}
