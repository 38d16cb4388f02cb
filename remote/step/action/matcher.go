package action

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/lazyregexp"
	"github.com/stepmux/stepmux/remote/step/annotation"
)

const (
	maxMatcherFile = 1 << 20
	maxMatchers    = 50
	maxPatterns    = 20
)

// matcher finds the problems in the output of a compiler or a linter.
type matcher struct {
	owner    string
	severity string
	patterns []pattern

	at    int                    // the pattern for the next line
	found *annotation.Annotation // the parts of earlier lines
}

type pattern struct {
	exp   *regexp.Regexp
	group map[string]int // of file, fromPath, line, column, severity, code and message
	loop  bool
}

// matcherFile is the format of a file with problem matchers.
type matcherFile struct {
	ProblemMatcher []struct {
		Owner, Severity string
		Pattern         []struct {
			Regexp                                                string
			File, FromPath, Line, Column, Severity, Code, Message int
			Loop                                                  bool
		}
	}
}

// readMatchers reads a file with problem matchers. A relative path is in the directory base.
func readMatchers(open boundedfile.Opener, base, path string) ([]*matcher, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(base, path)
	}
	data, err := boundedfile.ReadBy(open, path, maxMatcherFile)
	if err != nil {
		return nil, err
	}
	return parseMatchers(data)
}

func parseMatchers(data []byte) ([]*matcher, error) {
	var file matcherFile
	if err := json.Unmarshal([]byte(strings.TrimPrefix(string(data), "\uFEFF")), &file); err != nil {
		return nil, fmt.Errorf("the file is not the JSON of problem matchers: %w", err)
	}
	var list []*matcher
	for _, given := range file.ProblemMatcher {
		m := &matcher{owner: given.Owner, severity: given.Severity}
		if m.owner == "" || len(given.Pattern) == 0 || len(given.Pattern) > maxPatterns {
			return nil, fmt.Errorf("a problem matcher has an owner, and 1 to %d patterns", maxPatterns)
		}
		for i, p := range given.Pattern {
			exp, err := regexp.Compile(p.Regexp)
			if err != nil {
				return nil, fmt.Errorf("the problem matcher %.64q: its expression is not supported: %w", m.owner, err)
			}
			groups := map[string]int{
				"file": p.File, "fromPath": p.FromPath, "line": p.Line, "column": p.Column, "severity": p.Severity,
				"code": p.Code, "message": p.Message,
			}
			for name, group := range groups {
				if group < 0 || group > exp.NumSubexp() {
					return nil, fmt.Errorf("the problem matcher %.64q: its expression has no group %d, for %s", m.owner, group, name)
				}
			}
			if p.Loop && i < len(given.Pattern)-1 {
				return nil, fmt.Errorf("the problem matcher %.64q: only its last pattern can loop", m.owner)
			}
			m.patterns = append(m.patterns, pattern{exp, groups, p.Loop && i > 0})
		}
		list = append(list, m)
	}
	if len(list) == 0 {
		return nil, errors.New("the file has no problem matchers")
	}
	return list, nil
}

// colours matches the escape sequences that set colours.
var colours = lazyregexp.New("\x1b\\[[0-9;]*m?")

// match compares a line with the present pattern. It returns the problem that the line completes, or nil.
func (m *matcher) match(line string) *annotation.Annotation {
	for {
		p := m.patterns[m.at]
		groups := p.exp.FindStringSubmatch(line)
		if groups == nil {
			if m.at == 0 {
				return nil
			}
			m.at, m.found = 0, nil // the line may be the beginning of another problem
			continue
		}
		a := annotation.Annotation{Level: m.severity}
		if m.found != nil {
			a = *m.found
		}
		p.fill(&a, groups)
		switch {
		case m.at < len(m.patterns)-1:
			m.at++
			m.found = &a
			return nil
		case !p.loop:
			m.at, m.found = 0, nil
		}
		if a.Message == "" {
			return nil
		}
		if a.Level != "notice" && a.Level != "warning" {
			a.Level = "error"
		}
		return &a
	}
}

// fill sets the parts of the problem that the pattern's groups have matched.
func (p *pattern) fill(a *annotation.Annotation, groups []string) {
	text := func(name string) string {
		if n := p.group[name]; n > 0 {
			return groups[n]
		}
		return ""
	}
	number := func(name string, to *int) {
		if n, err := strconv.Atoi(text(name)); err == nil {
			*to = n
		}
	}
	if s := text("severity"); s != "" {
		a.Level = strings.ToLower(s)
	}
	if s := text("file"); s != "" {
		a.File = s
	}
	if s := text("code"); s != "" {
		a.Title = s
	}
	if s := text("message"); s != "" {
		a.Message = s
	}
	number("line", &a.Line)
	number("column", &a.Column)
}
