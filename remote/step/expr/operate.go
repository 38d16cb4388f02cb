package expr

import (
	"fmt"
	"math"
)

func (n *unary) eval(r *run) (Value, error) {
	v, err := n.operand.eval(r)
	if err != nil {
		return Value{}, err
	}
	if n.op == "!" {
		return boolean(!v.Truthy()).sealIf(v.Sensitive()), nil
	}
	if v.kind != Number {
		return Value{}, r.errorAt(n.at, "%s takes a number, not %s", n.op, v.kind.phrase())
	}
	if n.op == "-" {
		v.num = -v.num
	}
	return v, nil
}

func (n *chain) eval(r *run) (Value, error) {
	v, err := n.first.eval(r)
	for i := 0; i < len(n.rest) && err == nil; i++ {
		v, err = n.rest[i].apply(r, v)
	}
	return v, err
}

// apply returns left op operand.
func (o *operation) apply(r *run, left Value) (Value, error) {
	switch o.op {
	case "||":
		return o.choose(r, left, !left.Truthy())
	case "&&":
		return o.choose(r, left, left.Truthy())
	}
	right, err := o.operand.eval(r)
	if err != nil {
		return Value{}, err
	}
	result, err := o.compute(r, left, right)
	return result.sealIf(left.Sensitive() || right.Sensitive()), err
}

// choose returns the operand if operand is true, and left otherwise. The choice tells about left, so the result is
// sensitive if left is.
func (o *operation) choose(r *run, left Value, operand bool) (Value, error) {
	if !operand {
		return left, nil
	}
	right, err := o.operand.eval(r)
	return right.sealIf(left.Sensitive()), err
}

func (o *operation) compute(r *run, left, right Value) (Value, error) {
	if err := r.charge(o.at, left.size()+right.size()); err != nil {
		return Value{}, err
	}
	switch o.op {
	case "==":
		return boolean(equal(left, right)), nil
	case "!=":
		return boolean(!equal(left, right)), nil
	case "<", "<=", ">", ">=":
		return o.compare(r, left, right)
	case "+":
		if left.kind == String && right.kind == String {
			return o.concat(r, left, right)
		}
	}
	if left.kind != Number || right.kind != Number {
		takes := "two numbers"
		if o.op == "+" {
			takes = "two numbers or two strings"
		}
		return Value{}, r.errorAt(o.at, "%s takes %s, not %s and %s", o.op, takes, left.kind.phrase(), right.kind.phrase()).
			withHint("%s", hintFor(left, right))
	}
	f, err := arithmetic(o.op, left.num, right.num)
	return r.made(o.at, number(f), err)
}

func (o *operation) compare(r *run, left, right Value) (Value, error) {
	c, err := order(left, right)
	if err != nil {
		return Value{}, r.errorAt(o.at, "%s: %s", o.op, err.Error()).withHint("%s", hintFor(left, right))
	}
	switch o.op {
	case "<":
		return boolean(c < 0), nil
	case "<=":
		return boolean(c <= 0), nil
	case ">":
		return boolean(c > 0), nil
	default:
		return boolean(c >= 0), nil
	}
}

func (o *operation) concat(r *run, left, right Value) (Value, error) {
	if len(left.str)+len(right.str) > maxSize {
		return r.made(o.at, Value{}, errSize)
	}
	return text(left.str + right.str), nil
}

// hintFor returns a hint at a conversion that makes the operands fit.
func hintFor(left, right Value) string {
	if left.kind == String || right.kind == String {
		return "convert with num() or str()"
	}
	return ""
}

func arithmetic(op string, a, b float64) (float64, error) {
	var f float64
	switch op {
	case "+":
		f = a + b
	case "-":
		f = a - b
	case "*":
		f = a * b
	case "/", "%":
		if b == 0 {
			return 0, fmt.Errorf("%s: division by zero", op)
		}
		if f = a / b; op == "%" {
			f = math.Mod(a, b)
		}
	default:
		panic("BUG: unknown operator: " + op)
	}
	if math.IsInf(f, 0) {
		return 0, fmt.Errorf("%s: the result is too large for a number", op)
	}
	return f, nil
}
