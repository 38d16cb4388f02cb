package expr

import "strings"

// functions are the names of the functions.
var functions = []string{"bool", "num", "str"}

var functionsHint = "the functions are " + strings.Join(functions, ", ")

// reserved are words that are allowed as keys, but not as names.
var reserved = strings.Fields(`array as break case const continue default else fallthrough float for func
	function goto if import in int let loop map namespace number object package range return string struct
	switch type var void while`)

// literals are the words that stand for values.
var literals = map[string]Value{"null": {}, "true": boolean(true), "false": boolean(false)}

// foreign has operators of other languages, with hints at ours.
var foreign = map[string]string{
	"=":   "equality is ==",
	"&":   "and is &&",
	"|":   "or is ||, and there are no filters",
	"?":   "for cond ? a : b write cond && a || b",
	"and": "and is &&",
	"or":  "or is ||",
	"not": "not is !",
}

// isWord reports whether s can follow a dot.
func isWord(s string) bool {
	p := parser{text: s, end: len(s)}
	return p.word() == s && s != ""
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' }

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
