// Package component has the words in which a step runner and the fetcher of steps speak of steps of other places: a
// [Component] is a fetched step, a [Source] its identity and origin, and [Credentials] are the logins that a job may
// present. [DirTree] takes the digest of files as a Source has it.
//
// The package knows no network. Package fetch gets components; start reading there.
package component
