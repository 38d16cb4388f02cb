// Package sshtarget finds out how to reach a machine by SSH, from OpenSSH's client configuration and from settings that
// override it: names of ssh_config(5), keys, agents, passphrase and identity commands, host-key policies, jump hosts.
//
// A [Resolver] turns a [Host], which an operator names, into a [Target], ready for mux.Dial. [ParsePolicy] reads the
// host-key policies. `ssh -G` evaluates ssh_config; config.go says when a library does. Nothing here connects to a
// machine, and nothing outlives a call.
package sshtarget
