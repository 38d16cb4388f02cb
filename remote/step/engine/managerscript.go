package engine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/step/expr"
)

// managerScript returns the shell script of a script_legacy step. It shows each command before it runs, as GitLab
// Runner does.
func (r *Runner) managerScript(g *frame) (string, error) {
	list := g.given
	if list.Len() == 0 {
		return "", errors.New("the script is empty; write the commands for the shell")
	}
	look := scriptLook{
		colours:  !g.inputs["posix_escape"].Truthy(),
		sections: g.inputs["trace_sections"].Truthy(),
		check:    g.inputs["check_for_errors"].Truthy(),
	}
	var b strings.Builder
	if dir, ok := r.knownVars(g)["RUNNER_TEMP_PROJECT_DIR"]; ok && dir.Text() != "" {
		// The parts of a job pass variables to later parts in this file.
		line, err := wire.Quote("export", "GITLAB_ENV="+dir.Text()+"/gitlab_runner_env")
		if err != nil {
			return "", err
		}
		b.WriteString(line + "\n" + readGitLabEnv)
	}
	for i := range list.Len() {
		if list.Index(i).Kind() != expr.String {
			return "", errors.New("every command of the script must be a text")
		}
		if err := look.write(&b, i, strings.TrimSpace(list.Index(i).Text())); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// readGitLabEnv exports the variables in the file GITLAB_ENV: NAME=value on each line.
const readGitLabEnv = `if [ -f "$GITLAB_ENV" ]; then
while IFS= read -r stepmux_line || [ -n "$stepmux_line" ]; do
case "$stepmux_line" in *=*) export "$stepmux_line" ;; esac
done < "$GITLAB_ENV"
unset stepmux_line
fi
`

// scriptLook says how a script shows its commands.
type scriptLook struct{ colours, sections, check bool }

// write writes the command at index i of a script.
func (l scriptLook) write(b *strings.Builder, i int, command string) error {
	if command == "" {
		b.WriteString("echo\n")
		return nil
	}
	first, _, several := strings.Cut(command, "\n")
	shown := "$ " + first
	section := several && l.sections
	if several && !section {
		shown += " # collapsed multi-line command"
	}
	if l.colours {
		shown = "\x1b[32;1m" + shown + "\x1b[0;m"
	}
	quoted, err := wire.Quote("printf", `%s\n`, shown)
	if err != nil {
		return fmt.Errorf("the script's command %d: %w", i+1, err)
	}
	name := fmt.Sprintf("section_script_step_%d", i) // as GitLab's log viewer knows it
	if section {
		fmt.Fprintf(b, `printf 'section_start:%%s:%s\r\033[0K' "$(date +%%s)"`+"\n", name)
	}
	b.WriteString(quoted + "\n" + command + "\n")
	if l.check {
		b.WriteString("stepmux_status=$?; if [ $stepmux_status -ne 0 ]; then exit $stepmux_status; fi\n")
	}
	if section {
		fmt.Fprintf(b, `printf 'section_end:%%s:%s\r\033[0K\n' "$(date +%%s)"`+"\n", name)
	}
	return nil
}
