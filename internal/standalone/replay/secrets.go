package replay

import (
	"cmp"
	"crypto/hmac"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/remote/step/lang"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

// secrets has the given values for the masked values of a trace.
type secrets struct {
	sums  *mask.Salt // nil if no value is masked
	paths *recording.Paths
	given map[string]string

	used     map[string]bool
	missing  []string
	wrong    []string          // given values that the job did not have
	restored map[string]string // the originals of masked values, by name or pointer
}

// value returns the original of a masked text: the value given for its name or pointer, or else any given value with
// that sum. pointer is its place in the identity; name may be empty.
func (s *secrets) value(name, pointer, sum string) string {
	value := s.find(name, pointer, sum)
	if value != "" {
		s.restored[cmp.Or(name, pointer)] = value
	}
	return value
}

func (s *secrets) find(name, pointer, sum string) string {
	for _, known := range []string{pointer, name} {
		value, found := s.given[known]
		if known == "" || !found {
			continue
		}
		s.used[known] = true
		if exact, ok := s.fitting(value, sum); ok {
			return exact
		}
		if !slices.Contains(s.wrong, known) {
			s.wrong = append(s.wrong, known)
		}
		return strings.TrimSuffix(value, "\n")
	}
	for known, value := range s.given {
		if exact, ok := s.fitting(value, sum); ok {
			s.used[known] = true
			return exact
		}
	}
	if name = cmp.Or(name, pointer); !slices.Contains(s.missing, name) {
		s.missing = append(s.missing, name)
	}
	return ""
}

// fitting returns value if it has the sum, with or without a newline at its end, as files have.
func (s *secrets) fitting(value, sum string) (string, bool) {
	if s.sums == nil {
		return "", false
	}
	for _, v := range []string{strings.TrimSuffix(value, "\n"), value} {
		for _, text := range []string{s.paths.Mark(v), v} {
			if hmac.Equal([]byte(s.sums.Sum(text)), []byte(sum)) {
				return v, true
			}
		}
	}
	return "", false
}

// text returns the original of t.
func (s *secrets) text(t mask.Text, name, pointer string) string {
	if t.Masked {
		return s.value(name, pointer, t.HMAC)
	}
	return s.paths.Expand(t.Value)
}

// end returns the texts to mask. The error names values that are missing, and given values that are not needed. notices
// name texts that cannot be masked again.
func (s *secrets) end() (hide, notices []string, err error) {
	if len(s.missing) > 0 {
		slices.Sort(s.missing)
		return nil, nil, &MissingError{s.missing}
	}
	for _, name := range slices.Sorted(maps.Keys(s.given)) {
		if strings.HasPrefix(name, "/") && s.used[name] {
			continue // the secret may be only a part of it
		}
		value := strings.TrimSuffix(s.given[name], "\n")
		switch {
		case s.used[name], value != "" && s.within(value):
			hide = append(hide, value)
		case !isCredential(name):
			return nil, nil, fmt.Errorf("the trace has nothing masked that is called%s; see its vars_used, or leave the "+
				"secret out", lang.Quote(name))
		}
	}
	hide = slices.DeleteFunc(hide, func(value string) bool { return value == "" })
	known := hide
	for _, where := range slices.Sorted(maps.Keys(s.restored)) {
		text := s.restored[where]
		if slices.ContainsFunc(known, func(value string) bool { return strings.Contains(text, value) }) {
			continue
		}
		hide = append(hide, text)
		if strings.HasPrefix(where, "/") {
			notices = append(notices, fmt.Sprintf("nothing says which part of the text at %s is the secret; "+
				"give that too, with a name of your choice, else it is masked only where all of the text stands", graphic(where)))
		}
	}
	return hide, notices, nil
}

// within reports whether a restored text contains value.
func (s *secrets) within(value string) bool {
	for _, text := range s.restored {
		if strings.Contains(text, value) {
			return true
		}
	}
	return false
}
