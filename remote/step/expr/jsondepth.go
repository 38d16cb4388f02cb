package expr

// JSONDepth returns how deep the arrays and objects of a JSON text are nested at most: to be known before it is parsed.
// Of what is no JSON it says something, too.
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
