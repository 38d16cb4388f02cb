package action

import "strings"

// command is a workflow command: a line of output that asks the runner for something.
type command struct {
	name       string
	properties map[string]string // by their names in lower case
	data       string
}

var (
	dataEscapes     = strings.NewReplacer("%0D", "\r", "%0A", "\n", "%25", "%")
	propertyEscapes = strings.NewReplacer("%0D", "\r", "%0A", "\n", "%3A", ":", "%2C", ",", "%25", "%")
	oldEscapes      = strings.NewReplacer("%0D", "\r", "%0A", "\n", "%3B", ";", "%5D", "]", "%25", "%")
)

// commandNames are the known commands. A line with another name is text.
var commandNames = []string{
	"set-output", "save-state", "add-mask", "add-path", "set-env", "group",
	"endgroup", "debug", "notice", "warning", "error", "add-matcher",
	"remove-matcher", "echo", "stop-commands",
}

// parseCommand reads ::name key=value,key=value::data, or the older ##[name key=value;key=value]data. Spaces and tabs
// may stand before it.
func parseCommand(line string) (c command, ok bool) {
	line = strings.TrimLeft(line, " \t")
	var head, separator string
	escapes, values := dataEscapes, propertyEscapes
	if rest, found := strings.CutPrefix(line, "::"); found {
		head, c.data, ok = strings.Cut(rest, "::")
		separator = ","
	} else if rest, found := strings.CutPrefix(line, "##["); found {
		head, c.data, ok = strings.Cut(rest, "]")
		separator, escapes, values = ";", oldEscapes, oldEscapes
	}
	if !ok {
		return c, false
	}
	name, properties, _ := strings.Cut(strings.TrimSpace(head), " ")
	c.name, c.data = strings.ToLower(name), escapes.Replace(c.data)
	c.properties = map[string]string{}
	for _, p := range strings.Split(strings.TrimSpace(properties), separator) {
		if key, value, found := strings.Cut(p, "="); found && value != "" {
			c.properties[strings.ToLower(strings.TrimSpace(key))] = values.Replace(value)
		}
	}
	return c, c.name != ""
}
