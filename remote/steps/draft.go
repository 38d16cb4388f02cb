package steps

// A draft is a step as a front end read it, of the right types but not checked. Both front ends make
// drafts, compile checks them: what is a mistake in one is a mistake in the other.
type draft struct {
	at     place
	name   word
	when   word
	script word
	exec   *draftExec
	env    []pair
	// other holds the keywords the step has that nothing can run yet (step, func, action, inputs).
	other []word
}

type draftExec struct {
	at        place
	command   []word
	commandAt place
	workDir   word
}

// word is a piece of text and where it stood.
type word struct {
	at    place
	text  string
	given bool
}

// pair is an entry of env.
type pair struct{ key, value word }
