package lang

import "google.golang.org/protobuf/types/known/structpb"

// A draft is the result of a front end: parts of the right types that are not checked yet. All front ends make drafts,
// and compile checks them, so all front ends report the same mistakes.

// draftDefinition is a job or a step.
type draftDefinition struct {
	at       place
	v0       bool
	spec     draftSpec
	env      []pair
	exec     *draftExec
	run      *draftRun
	outputs  []namedValue
	delegate word
	// named says that each of its steps must have a name.
	named bool
}

// draftRun is a list of steps.
type draftRun struct {
	at    place
	steps []draft
}

// draft is a step of a list.
type draft struct {
	at        place
	name      word
	when      word
	condition word
	timeout   word
	env       []pair
	inputs    []namedValue
	inputsAt  place

	// ways are the keys by which the step names its code; the fields below have their values. Only one is allowed.
	ways   []word
	script word
	ref    *draftReference
	exec   *draftExec
	run    *draftRun
}

// draftReference is the value of step, func or action.
type draftReference struct {
	at     place
	text   word
	action bool
	long   map[string][]pair // the long forms, such as git, and their parts; nil for a text
}

type draftExec struct {
	at        place
	command   []word
	commandAt place
	workDir   word
	timeout   word
}

type draftSpec struct {
	inputs   []draftParam
	outputs  []draftParam
	delegate word // outputs: delegate
	requests *draftRequests
}

// draftParam is an input or an output.
type draftParam struct {
	name        word
	kind        word
	preset      *draftValue // its default
	description word
	sensitive   bool
	options     []word
	match       word
}

func paramNames(list []draftParam) []string {
	names := make([]string, len(list))
	for i, p := range list {
		names[i] = p.name.text
	}
	return names
}

// paramSet is paramNames for a spec of many names. Each may be looked up many times.
func paramSet(list []draftParam) map[string]bool {
	names := make(map[string]bool, len(list))
	for _, p := range list {
		names[p.name.text] = true
	}
	return names
}

type draftRequests struct{ env, vars []word }

// word is a text and its place.
type word struct {
	at    place
	text  string
	given bool
}

// pair is an entry of env, or a part of a reference.
type pair struct{ key, value word }

// draftValue is a value of any type. texts are the strings in it with expressions or escapes.
type draftValue struct {
	at    place
	value *structpb.Value
	texts []word
}

type namedValue struct {
	name  word
	value draftValue
}
