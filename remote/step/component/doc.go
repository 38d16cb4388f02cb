// Package component has the types for fetched steps that a step runner and the program that fetches share. A
// [Component] is a fetched step, a [Source] its identity and origin, and [Credentials] are the logins that a job may
// present. [DirTree] computes the digest of files in a Source.
//
// A [Fetcher] gets components by another program, so this package links no network code. Package fetch does the work;
// start reading there. The caller releases each Component.
package component
