package expr

// JSONDepth returns the deepest nesting of arrays and objects in a JSON text, so that it can be checked before the text
// is parsed. The result for text that is not JSON has no meaning.
func JSONDepth(data []byte) (most int) {
	level, inString, escaped := 0, false, false
	for _, c := range data {
		switch {
		case escaped:
			escaped = false
		case inString:
			escaped, inString = c == '\\', c != '"'
		case c == '"':
			inString = true
		case c == '[' || c == '{':
			level++
			most = max(most, level)
		case c == ']' || c == '}':
			level--
		}
	}
	return most
}
