// Package ast stands for the tree of an expression.
package ast

// Expr is an expression.
type Expr interface {
	Walk(Visitor) (Expr, error)
}

// Visitor visits one.
type Visitor interface {
	Enter(Expr) (Visitor, error)
	Exit(Expr) (Expr, error)
}

// Template is a text with expressions in it.
type Template struct{}

// Walk implements Expr.
func (t *Template) Walk(Visitor) (Expr, error) { return t, nil }
