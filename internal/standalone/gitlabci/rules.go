package gitlabci

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// The keys of a rule in the rules of a job, of workflow and of include.
var (
	jobRuleKeys = []string{
		"if", "changes", "exists", "when", "start_in", "allow_failure", "variables", "needs", "interruptible",
	}
	workflowRuleKeys = []string{"if", "changes", "exists", "when", "variables", "auto_cancel"}
	includeRuleKeys  = []string{"if", "changes", "exists", "when"}
)

// never is the value of when by which a rule excludes its job.
const never = "never"

// whens are the values of when in a rule.
var whens = []string{"on_success", "on_failure", "always", "manual", "delayed", never}

// matched returns the first rule of the list n that matches with the variables of e. It is nil if no rule matches, or
// if the first one that does has when: never. It checks the form of all rules.
func (f *File) matched(n *yaml.Node, keys []string, e *expander) (rule *yaml.Node) {
	found := false
	for _, r := range f.rules(n, keys) {
		if is := f.ruleMatches(r, e); is && !found {
			found, rule = true, r
		}
	}
	if when := find(rule, "when"); when != nil && when.Value == never {
		return nil
	}
	return rule
}

// rules returns the rules in the list n.
func (f *File) rules(n *yaml.Node, keys []string) []*yaml.Node {
	switch {
	case isNull(n):
		return nil
	case n.Kind != yaml.SequenceNode:
		f.tree.failf(n, "rules must be a list, not %s", describe(n))
		return nil
	}
	all := f.tree.flat("rules", n, 0)
	for _, item := range all {
		if item.Kind != yaml.MappingNode {
			f.tree.failf(item, "a rule must be a mapping with if, changes, exists or when, not %s", describe(item))
			return nil
		}
		f.tree.checkKeys(item, "a rule", keys, "")
		switch when := find(item, "when"); {
		case isNull(when):
		case !slices.Contains(whens, when.Value):
			f.tree.failf(when, "when is one of %s", strings.Join(whens, ", "))
		case !slices.Contains(keys, "start_in") && when.Value != lang.Always && when.Value != never:
			f.tree.warnf(when, "GitLab refuses when: %s in this rule; rules of workflow and include take always and never",
				when.Value)
		}
		f.variables(nil, find(item, "variables")) // checks them
	}
	return all
}

// ruleMatches reports whether all parts of a rule are true.
func (f *File) ruleMatches(rule *yaml.Node, e *expander) bool {
	holds := true
	if n := find(rule, "if"); !isNull(n) {
		holds = f.conditionHolds(n, e)
	}
	if n := find(rule, "changes"); !isNull(n) {
		holds = f.changed(n, e) && holds
	}
	if n := find(rule, "exists"); !isNull(n) {
		holds = f.exists(n, e) && holds
	}
	return holds && f.tree.Err == nil
}

func (f *File) conditionHolds(n *yaml.Node, e *expander) bool {
	if n.Kind != yaml.ScalarNode {
		f.tree.failf(n, "if must be a text, such as $CI_COMMIT_BRANCH == \"main\", not %s", describe(n))
		return false
	}
	c, err := parseCondition(n.Value)
	if err != nil {
		f.tree.failf(n, "if: %v", err)
		return false
	}
	return c.eval(e.lookUp).holds()
}

// changed reports whether changed files match the patterns in n. It returns true if the changes are not known, like
// GitLab for a pipeline without an earlier commit.
func (f *File) changed(n *yaml.Node, e *expander) bool {
	patterns := f.patterns("changes", n, []string{"paths", "compare_to"}, e)
	if f.cfg.Changed == nil || f.tree.Err != nil {
		return true
	}
	base := ""
	if to := find(n, "compare_to"); !isNull(to) {
		base = e.expand(variable{at: to, value: to.Value})
	}
	paths, known := f.changes[base]
	if !known {
		var err error
		if paths, err = f.cfg.Changed(base); err != nil {
			f.notice(fmt.Sprintf("changes of rules (treated as changed: %v)", err))
		}
		f.changes[base] = paths
	}
	return paths == nil || anyMatches(patterns, paths)
}

// exists reports whether the project has files that match the patterns in n.
func (f *File) exists(n *yaml.Node, e *expander) bool {
	patterns := f.patterns("exists", n, []string{"paths", "project", "ref"}, e)
	if !isNull(find(n, "project")) {
		f.notice("exists of another project (treated as missing)")
		return false
	}
	paths, err := f.list()
	if err != nil {
		f.tree.failf(n, "exists: %v", err)
	}
	return anyMatches(patterns, paths)
}

// list returns the paths of the files of the project.
func (f *File) list() ([]string, error) {
	if f.paths == nil && f.cfg.List != nil {
		paths, err := f.cfg.List()
		if err != nil {
			return nil, err
		}
		f.paths = append([]string{}, paths...)
	}
	return f.paths, nil
}

// maxPatterns bounds the patterns in one rule.
const maxPatterns = 1000

// patterns returns the patterns of paths in n: a text, a list, or a mapping whose key paths has them. Errors call n
// label.
func (f *File) patterns(label string, n *yaml.Node, keys []string, e *expander) (all []*regexp.Regexp) {
	if n.Kind == yaml.MappingNode {
		f.tree.checkKeys(n, label, keys, "")
		paths := find(n, "paths")
		if isNull(paths) {
			f.tree.failf(n, "%s needs paths, a list of files", label)
			return nil
		}
		n = paths
	}
	for _, item := range itemsOf(n) {
		if item.Kind != yaml.ScalarNode || len(all) >= maxPatterns {
			f.tree.failf(item, "%s takes the paths of files, or patterns such as docs/**/*.md, at most %d", label, maxPatterns)
			return nil
		}
		pattern, err := globPattern(strings.TrimPrefix(e.expand(variable{at: item, value: item.Value}), "/"))
		if err != nil {
			f.tree.failf(item, "%s: the pattern is not valid: %v", label, bare(err))
			return nil
		}
		all = append(all, pattern)
	}
	return all
}

func anyMatches(patterns []*regexp.Regexp, paths []string) bool {
	return slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return slices.ContainsFunc(paths, p.MatchString) })
}

// globPattern returns a regex for a pattern of paths, as Ruby's File.fnmatch? matches with the flags of GitLab: **/
// matches any number of directories, * and ? match no slash, [a-z] and {a,b} are choices. A { or a [ without its end
// matches nothing.
func globPattern(glob string) (*regexp.Regexp, error) {
	if len(glob) > maxGlob {
		return nil, fmt.Errorf("it has more than %d bytes", maxGlob)
	}
	left := maxChoices
	choices, ok := globChoices(glob, &left)
	if !ok {
		return nil, fmt.Errorf("its { } make patterns of more than %d KiB", maxChoices>>10)
	}
	var all []string
	for _, choice := range choices {
		if text, ok := globText(choice); ok {
			all = append(all, text)
		}
	}
	if len(all) == 0 {
		return noPath, nil
	}
	return regexp.Compile(`\A(?s:` + strings.Join(all, "|") + `)\z`)
}

// maxGlob bounds a pattern, in bytes, and maxChoices all patterns together that one with braces stands for.
const maxGlob, maxChoices = 4 << 10, 64 << 10

// globChoices returns the patterns without braces that a pattern stands for. ok is false if they have more than left
// bytes.
func globChoices(glob string, left *int) (all []string, ok bool) {
	begin, parts, at := -1, []string(nil), 0
	for i, depth := 0, 0; i < len(glob); i++ {
		switch c := glob[i]; {
		case c == '\\':
			i++
		case c == '{':
			if depth++; depth == 1 {
				begin, at = i, i+1
			}
		case depth == 0:
		case c == ',' && depth == 1:
			parts, at = append(parts, glob[at:i]), i+1
		case c == '}':
			if depth--; depth > 0 {
				continue
			}
			for _, part := range append(parts, glob[at:i]) {
				more, ok := globChoices(glob[:begin]+part+glob[i+1:], left)
				if !ok {
					return nil, false
				}
				all = append(all, more...)
			}
			return all, true
		}
	}
	if begin >= 0 { // it has no end
		return nil, true
	}
	*left -= len(glob) + 1
	return []string{glob}, *left >= 0
}

// globText returns the regex for a pattern without braces. ok is false if it matches nothing.
func globText(glob string) (text string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(glob); i++ {
		rest := glob[i:]
		switch c := glob[i]; {
		case strings.HasPrefix(rest, "**/") && (i == 0 || glob[i-1] == '/'):
			b.WriteString(`(?:.*/)?`)
			i += 2
		case c == '*':
			b.WriteString(`[^/]*`)
			i += len(rest) - len(strings.TrimLeft(rest, "*")) - 1
		case c == '?':
			b.WriteString(`[^/]`)
		case c == '[':
			class, n := globClass(rest)
			if n == 0 {
				return "", false
			}
			b.WriteString(class)
			i += n - 1
		case c == '\\' && len(rest) > 1:
			b.WriteString(regexp.QuoteMeta(rest[1:2]))
			i++
		case c == '\\': // at the end it stands for nothing
		default:
			b.WriteString(regexp.QuoteMeta(rest[:1]))
		}
	}
	return b.String(), true
}

// noPath matches nothing.
var noPath = regexp.MustCompile(`[^\x00-\x{10FFFF}]`)

// globClass returns the regex for the class of characters at the begin of a pattern, and its length, or 0 for a [
// without its end. As in Ruby, the first ] ends it, so that [] matches nothing and [!] each character but a slash, a
// backslash takes the next character as it is, and a range whose ends are in the wrong order has these two characters.
func globClass(glob string) (class string, length int) {
	at := 1
	negated := len(glob) > 1 && (glob[1] == '!' || glob[1] == '^')
	if negated {
		at++
	}
	next := func() (char rune, ok bool) {
		if strings.HasPrefix(glob[at:], `\`) {
			at++
		}
		char, n := utf8.DecodeRuneInString(glob[at:])
		at += n
		return char, n > 0
	}
	var set strings.Builder
	for at < len(glob) && glob[at] != ']' {
		from, ok := next()
		if !ok {
			return "", 0
		}
		to, isRange := from, len(glob)-at > 1 && glob[at] == '-' && glob[at+1] != ']'
		if isRange {
			at++
			if to, ok = next(); !ok {
				return "", 0
			}
		}
		ends := [][2]rune{{from, to}}
		if from > to {
			ends = [][2]rune{{from, from}, {to, to}}
		}
		for _, r := range ends { // without the slash
			for _, part := range [][2]rune{{r[0], min(r[1], '/'-1)}, {max(r[0], '/'+1), r[1]}} {
				if part[0] <= part[1] {
					fmt.Fprintf(&set, `\x{%x}-\x{%x}`, part[0], part[1])
				}
			}
		}
	}
	switch {
	case at == len(glob):
		return "", 0
	case negated:
		return "[^/" + set.String() + "]", at + 1
	case set.Len() == 0:
		return noPath.String(), at + 1
	}
	return "[" + set.String() + "]", at + 1
}

// includePattern returns a regex for the path of an include with wildcards: * matches no slash, ** matches everything.
func includePattern(path string) (*regexp.Regexp, error) {
	quoted := regexp.QuoteMeta(path)
	quoted = strings.ReplaceAll(quoted, `\*\*`, "\x00")
	quoted = strings.ReplaceAll(quoted, `\*`, `[^/]*`)
	return regexp.Compile(`\A(?s:` + strings.ReplaceAll(quoted, "\x00", ".*") + `)\z`)
}

// ruling is the result of the rules of a job.
type ruling struct {
	when         string // empty if the rules do not set it
	out          string // the keys that exclude the job from the pipeline; empty if it is included
	allowFailure *yaml.Node
	variables    *yaml.Node
	rule         *yaml.Node // that counts; nil without rules
}

// judge evaluates the rules of the job with its variables.
func (d *draft) judge(e *expander) (r ruling) {
	n := find(d.node, "rules")
	if !d.selected(e) {
		if r.out = "only and except"; isNull(find(d.node, "only")) && isNull(find(d.node, "except")) {
			r.out = "only, whose default is branches and tags"
		}
	}
	if isNull(n) {
		return r
	}
	rule := d.file.matched(n, jobRuleKeys, e)
	if rule == nil {
		r.out = "rules"
		return r
	}
	if when := find(rule, "when"); when != nil {
		r.when = when.Value
	}
	r.rule, r.allowFailure, r.variables = rule, find(rule, "allow_failure"), find(rule, "variables")
	return r
}

// tell adds notices about a ruling.
func (d *draft) tell(r ruling) {
	say := func(text string) { d.notices = append(d.notices, text) }
	switch {
	case r.out != "":
		say("a pipeline with these variables would not have this job, by its " + r.out + "; it runs because you named it")
	case r.when != "" && r.when != lang.Always && r.when != "on_success":
		say(fmt.Sprintf("the rules of this job have when: %.32s; it runs because you named it", r.when))
	}
	if n := r.allowFailure; n != nil && n.Value != "false" {
		say("a pipeline would go on after a failure of this job (allow_failure), but its failure is told here")
	}
}

// workflow returns the variables that the rules of workflow add, or nil.
func (f *File) workflow(e *expander) *yaml.Node {
	n := find(f.globals["workflow"], "rules")
	if isNull(n) {
		return nil
	}
	rule := f.matched(f.resolve(n, nil), workflowRuleKeys, e)
	if rule == nil {
		f.notice("workflow (its rules would start no pipeline with these variables)")
		return nil
	}
	return find(rule, "variables")
}
