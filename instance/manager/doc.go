// Package manager is the long-lived process that owns a fleet's connections: builds wait in its queue, run on the
// instances of a provider, and outlive the manager.
//
// [Open] opens a state directory and returns a [Manager], which resumes the builds that run already, takes others from
// the queue and answers the service of package managerv1. Queue, builds and logs are streams of NATS JetStream, whose
// server is embedded and listens nowhere. Shutdown leaves running builds to the next manager, which goes on with them
// as it does after a crash. managerv1.Dial connects a client.
//
// With Config.NATS several managers share the streams of a NATS cluster, and a fleet. Each uses some of the VMs at a
// time: package claims has the rules. What differs otherwise is behind two interfaces: fleet, with the implementations
// alone and shared, and home in package state, with embedded and joined.
//
// The rules that keep a build from being lost or run twice are in state/store.go and build.go. The manager joins the
// packages below it: state, claims, archive for files, command for the commands of leases, and sshdoor.
package manager
