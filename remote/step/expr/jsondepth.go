package expr

// JSONShape returns the deepest nesting of arrays and objects in a JSON text, and how many values it has at most, so
// that both can be checked before the text is parsed. The results for text that is not JSON have no meaning.
func JSONShape(data []byte) (depth, values int) {
	level, inString, escaped := 0, false, false
	values = 1
	for _, c := range data {
		switch {
		case escaped:
			escaped = false
		case inString:
			escaped, inString = c == '\\', c != '"'
		case c == '"':
			inString = true
		case c == ',':
			values++
		case c == '[' || c == '{':
			values++
			level++
			depth = max(depth, level)
		case c == ']' || c == '}':
			level--
		}
	}
	return depth, values
}
