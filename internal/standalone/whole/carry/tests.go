package carry

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/remote/archive"
)

const (
	// maxTestFile bounds a report of tests, in bytes.
	maxTestFile = 30 << 20
	// MaxTests bounds all reports of tests of a run, in bytes.
	MaxTests = 64 << 20
	// maxTestDepth bounds the nesting of elements in a report of tests.
	maxTestDepth = 64
)

// ErrTests says that a run has too many reports of tests.
var ErrTests = fmt.Errorf("the reports of all jobs have more than %d MiB", MaxTests>>20)

// readTests returns the suites in the reports of a job that match the patterns.
func readTests(ctx context.Context, job, dir string, patterns []string, tell func(string)) ([]byte, error) {
	if len(patterns) == 0 {
		return nil, nil
	}
	found, err := archive.Find(ctx, archive.Selection{Dir: dir, Paths: patterns, Info: func(string) {}, Warn: tell})
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var all []byte
	for _, name := range found.Names() {
		data, err := boundedfile.ReadBy(found.Root().OpenFile, name, maxTestFile)
		var suites bytes.Buffer
		if err == nil {
			err = copySuites(&suites, job, data)
		}
		if err == nil && len(all)+suites.Len() > MaxTests {
			err = ErrTests
		}
		if err != nil {
			tell(fmt.Sprintf("%.160q: %v", name, err))
			continue
		}
		all = append(all, suites.Bytes()...)
	}
	return all, nil
}

// copySuites copies the elements testsuite of a report. Their names begin with that of the job.
func copySuites(to *bytes.Buffer, job string, report []byte) error {
	from := xml.NewDecoder(bytes.NewReader(report))
	var open []xml.Name
	isWrapped := false // in an element testsuites
	inSuite := func() bool { return len(open) > 1 || len(open) == 1 && !isWrapped }
	for {
		token, err := from.RawToken() // prefixes of names stay as they are
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("not a report of JUnit: %w", err)
		}
		switch t := token.(type) {
		case xml.StartElement:
			isFirst := !inSuite()
			if len(open) == 0 && t.Name.Local == "testsuites" {
				isWrapped = true
			} else if isFirst && t.Name.Local != "testsuite" {
				return fmt.Errorf("not a report of JUnit: the element %.64q is not a testsuite", t.Name.Local)
			} else {
				writeStart(to, t, isFirst, job)
			}
			if open = append(open, t.Name); len(open) > maxTestDepth {
				return errors.New("the elements are nested too deep")
			}
		case xml.EndElement:
			if len(open) == 0 || open[len(open)-1] != t.Name {
				return fmt.Errorf("not a report of JUnit: the element %.64q ends, and is not open", t.Name.Local)
			}
			if inSuite() {
				to.WriteString("</" + nameIn(t.Name) + ">")
			}
			if open = open[:len(open)-1]; !inSuite() {
				to.WriteByte('\n')
			}
		case xml.CharData:
			if inSuite() {
				_ = xml.EscapeText(to, t) // a buffer takes everything
			}
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("not a report of JUnit: the element %.64q has no end", open[len(open)-1].Local)
	}
	return nil
}

// writeStart writes the start of an element. The name of a suite begins with that of the job.
func writeStart(to *bytes.Buffer, e xml.StartElement, isSuite bool, job string) {
	to.WriteString("<" + nameIn(e.Name))
	isNamed := false
	write := func(name, value string) {
		to.WriteString(" " + name + `="`)
		_ = xml.EscapeText(to, []byte(value))
		to.WriteByte('"')
	}
	for _, a := range e.Attr {
		value := a.Value
		if isSuite && nameIn(a.Name) == "name" {
			isNamed, value = true, job+": "+value
		}
		write(nameIn(a.Name), value)
	}
	if isSuite && !isNamed {
		write("name", job)
	}
	to.WriteByte('>')
}

// nameIn returns a name as it stands in the text.
func nameIn(n xml.Name) string {
	if n.Space == "" {
		return n.Local
	}
	return n.Space + ":" + n.Local
}
