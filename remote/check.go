package remote

import "github.com/stepmux/stepmux/remote/step/lang"

// MaxSteps is the largest text of steps CheckSteps accepts, in bytes.
const MaxSteps = lang.MaxText

// CheckSteps returns the error with which a step runner of this version refuses the steps in data, or nil. In the
// error, "name:line:column: reason", name stands for the text.
func CheckSteps(name string, data []byte) error {
	_, err := lang.Parse(name, data)
	return err
}
