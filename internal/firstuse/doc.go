// Package firstuse stores the host key that each machine showed when it was first reached (trust on first use). A
// [Store] is a file. Its keys are the machines' identities, never their addresses, because another machine may get an
// address later.
//
// The file has the form of OpenSSH's known_hosts, with the identity in place of the name. So
//
//	ssh -o UserKnownHostsFile=FILE -o HostKeyAlias=ID ...
//
// verifies a machine by it. Each line ends with the day on which the machine was last reached. Machines that were not
// reached for 90 days are forgotten.
package firstuse
