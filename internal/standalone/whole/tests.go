package whole

import (
	"bytes"
	"encoding/xml"
	"sync"

	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
)

// testReports joins reports of tests in the form of JUnit. The zero value is empty.
type testReports struct {
	mu     sync.Mutex   // guards the following
	suites bytes.Buffer // elements testsuite
}

// add adds the suites of a job.
func (r *testReports) add(suites []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.suites.Len()+len(suites) > carry.MaxTests {
		return carry.ErrTests
	}
	_, err := r.suites.Write(suites)
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
