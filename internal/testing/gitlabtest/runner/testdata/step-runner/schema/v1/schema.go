// Package schema stands for the step runner's steps.
package schema

// StepInputs are the inputs of a step.
type StepInputs map[string]any

// Step is a step.
type Step struct {
	Name   *string    `json:"name,omitempty"`
	Step   any        `json:"step,omitempty"`
	Inputs StepInputs `json:"inputs,omitempty"`
	Run    []Step     `json:"run,omitempty"`
}
