package remote

import "github.com/stepmux/stepmux/remote/step/lang"

// MaxSteps is the largest text of steps CheckSteps accepts, in bytes.
const MaxSteps = lang.MaxText

// CheckSteps reports what is wrong with the steps in data, as a step runner of this version would when
// they reach it. name stands for the text in errors, which have the form "name:line:column: what".
func CheckSteps(name string, data []byte) error {
	_, err := lang.Parse(name, data)
	return err
}
