package gitlabci

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

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

// globPattern returns a regex for a pattern of paths. As in GitLab, **/ matches any number of directories, * and ?
// match no slash, [a-z] and {a,b} are choices.
func globPattern(glob string) (*regexp.Regexp, error) {
	var b strings.Builder
	b.WriteString(`\A(?s:`)
	depth := 0
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
		case c == '[' && strings.Contains(rest, "]"):
			end := strings.Index(rest, "]")
			inner := strings.ReplaceAll(rest[1:end], `\`, `\\`)
			if negated := strings.TrimLeft(inner, "!^"); negated != inner {
				inner = "^/" + negated
			}
			b.WriteString("[" + strings.ReplaceAll(inner, "[", `\[`) + "]")
			i += end
		case c == '{':
			b.WriteString("(?:")
			depth++
		case c == ',' && depth > 0:
			b.WriteString("|")
		case c == '}' && depth > 0:
			b.WriteString(")")
			depth--
		case c == '\\' && len(rest) > 1:
			b.WriteString(regexp.QuoteMeta(rest[1:2]))
			i++
		default:
			b.WriteString(regexp.QuoteMeta(rest[:1]))
		}
	}
	b.WriteString(`)\z`)
	return regexp.Compile(b.String())
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
