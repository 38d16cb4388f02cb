package remote

import "github.com/stepmux/stepmux/remote/step/lang"

// MaxSteps is the largest text that CheckSteps accepts, in bytes.
const MaxSteps = lang.MaxText

// CheckSteps checks the steps in data as a step runner of this version does, without running them. It returns nil if
// they are valid, and otherwise an error of the form "name:line:column: reason". name stands for the text's file.
func CheckSteps(name string, data []byte) error {
	_, err := lang.Parse(name, data)
	return err
}
