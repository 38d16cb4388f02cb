package expression

import "strings"

// Template evaluates the expressions in text, each between ${{ and }}. If the text is a single expression, the result
// keeps the type of its value.
func Template(text string, s Scope) (Value, error) {
	return template(text, (&evaluation{scope: s}).run)
}

// IsSingle reports whether text is a single expression with nothing around it, so that the result of Template keeps its
// type.
func IsSingle(text string) bool {
	inner, found := strings.CutPrefix(text, "${{")
	return found && closing(inner) >= 0 && closing(inner) == len(inner)-len("}}")
}

// Check finds the mistakes in the expressions of text that do not depend on values. The error is that of Template.
func Check(text string, s Scope) error {
	_, err := template(text, func(inner string) (Value, int, error) {
		_, err := parse(inner, s)
		return Value{}, 0, err
	})
	return err
}

// Calls reports whether an expression in text calls one of the functions. Their names must be in lower case.
func Calls(text string, s Scope, functions ...string) (called bool) {
	_, _ = template(text, func(inner string) (Value, int, error) {
		root, err := parse(inner, s)
		called = called || err == nil && calls(root, functions)
		return Value{}, 0, err
	})
	return called
}

// Paths returns the properties of a context that the expressions in text name, each as the names that lead to it. The
// name of the context must be in lower case. A path ends before an index that is not a text, such as .*.
func Paths(text string, s Scope, name string) (all [][]string) {
	_, _ = template(text, func(inner string) (Value, int, error) {
		root, err := parse(inner, s)
		if err == nil {
			paths(root, name, func(path []string) { all = append(all, path) })
		}
		return Value{}, 0, err
	})
	return all
}

// template is Template with a function that returns the value of an expression, and the size of the results in bytes.
func template(text string, evaluate func(string) (Value, int, error)) (Value, error) {
	var out strings.Builder
	rest, spent := text, 0
	for {
		literal, after, found := strings.Cut(rest, "${{")
		if !found {
			if out.Len() == 0 && len(rest) == len(text) {
				return String(text), nil
			}
			out.WriteString(rest)
			return String(out.String()), nil
		}
		end := closing(after)
		if end < 0 {
			return Value{}, mistakef("The expression is not closed. An unescaped ${{ sequence was found, but the closing }} " +
				"sequence was not found")
		}
		v, bytes, err := evaluate(after[:end])
		if spent += bytes; err == nil && spent > maxTemplate {
			err = mistakef("The maximum allowed memory size was exceeded")
		}
		if err != nil {
			return Value{}, err
		}
		rest = after[end+len("}}"):]
		if literal == "" && rest == "" && len(after) == len(text)-len("${{") {
			return v, nil
		}
		out.WriteString(literal)
		out.WriteString(v.Text())
		if out.Len() > maxMemory {
			return Value{}, mistakef("The maximum allowed memory size was exceeded")
		}
	}
}

// closing returns the end of the expression at the beginning of text, or -1. It skips braces in quotes.
func closing(text string) int {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\'':
			quoted = !quoted
		case !quoted && strings.HasPrefix(text[i:], "}}"):
			return i
		}
	}
	return -1
}

// Evaluate parses and computes an expression.
func Evaluate(text string, s Scope) (Value, error) {
	v, _, err := (&evaluation{scope: s}).run(text)
	return v, err
}

// run parses and computes an expression. It also returns the size of the results in bytes.
func (e *evaluation) run(text string) (v Value, spent int, err error) {
	root, err := parse(text, e.scope)
	if err != nil {
		return Value{}, 0, err
	}
	e.spent = 0
	v, err = root.eval(e)
	return v, e.spent, err
}
