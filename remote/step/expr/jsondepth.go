package expr

// JSONShape returns how deep arrays and objects are nested in a JSON text, and an upper bound of its values, so that
// both can be checked before the text is parsed. If text is not JSON, the results have no meaning.
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
