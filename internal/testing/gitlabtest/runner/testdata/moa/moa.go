// Package moa stands for GitLab's language of expressions, which jobs without inputs do not use.
package moa

import (
	"errors"

	"gitlab.com/gitlab-org/moa/ast"
)

// ParseTemplate always fails.
func ParseTemplate(string) (ast.Expr, error) { return nil, errors.New("no moa here") }

// EscapeTemplate returns its argument.
func EscapeTemplate(text string) string { return text }
