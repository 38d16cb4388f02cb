package whole

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/remote/archive"
)

const (
	// maxTestFile bounds a report of tests, and maxTests all of them, in bytes.
	maxTestFile, maxTests = 30 << 20, 64 << 20
	// maxTestDepth bounds the nesting of elements in a report of tests.
	maxTestDepth = 64
)

// testReports joins reports of tests in the form of JUnit. The zero value is empty.
type testReports struct {
	mu     sync.Mutex   // guards the following
	suites bytes.Buffer // elements testsuite
}

// add adds the reports of a job that match the patterns.
func (r *testReports) add(ctx context.Context, job, dir string, patterns []string, tell func(string)) error {
	if len(patterns) == 0 {
		return nil
	}
	found, err := archive.Find(ctx, archive.Selection{Dir: dir, Paths: patterns, Info: func(string) {}, Warn: tell})
	if err != nil {
		return err
	}
	defer found.Close()
	for _, name := range found.Names() {
		data, err := boundedfile.ReadBy(found.Root().OpenFile, name, maxTestFile)
		var suites bytes.Buffer
		if err == nil {
			err = copySuites(&suites, job, data)
		}
		if err == nil {
			err = r.append(&suites)
		}
		if err != nil {
			tell(fmt.Sprintf("%.160q: %v", name, err))
		}
	}
	return nil
}

func (r *testReports) append(suites *bytes.Buffer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.suites.Len()+suites.Len() > maxTests {
		return fmt.Errorf("the reports of all jobs have more than %d MiB", maxTests>>20)
	}
	_, err := suites.WriteTo(&r.suites)
	return err
}

// document returns the joined report.
func (r *testReports) document() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	var text bytes.Buffer
	text.WriteString(xml.Header + "<testsuites>\n")
	text.Write(r.suites.Bytes())
	text.WriteString("</testsuites>\n")
	return text.Bytes()
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
