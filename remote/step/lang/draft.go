package lang

import "google.golang.org/protobuf/types/known/structpb"

// Drafts are what a front end read, of the right types but not checked. All front ends make drafts,
// compile checks them: what is a mistake in one is a mistake in the others.

// draftDefinition is a job, a step, or what stands in its place.
type draftDefinition struct {
	at       place
	v0       bool
	spec     *draftSpec // nil if there is none
	env      []pair
	exec     *draftExec
	run      *draftRun
	outputs  []namedValue
	delegate word
	// named says that its steps must have names.
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

	// ways are the keywords that say what to run, which the following hold; there should be one.
	ways   []word
	script word
	ref    *draftReference
	exec   *draftExec
	run    *draftRun
}

// draftReference is what step, func or action says.
type draftReference struct {
	at     place
	text   word
	action bool
	git    []field
	zip    []field
	oci    []field
	long   bool
}

// field is a key of a long form and its text.
type field struct{ key, value word }

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

type draftRequests struct{ env, vars []word }

// word is a piece of text and where it stood.
type word struct {
	at    place
	text  string
	given bool
}

// pair is an entry of env.
type pair struct{ key, value word }

// draftValue is a value of any type. texts are the strings in it that may have expressions.
type draftValue struct {
	at    place
	value *structpb.Value
	texts []word
}

type namedValue struct {
	name  word
	value draftValue
}
