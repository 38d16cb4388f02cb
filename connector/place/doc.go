// Package place describes where a build's step runner runs, if not on a VM itself: in a container (package docker) or
// in a pod (package kubernetes).
//
// A [Description] says how the place is to be: it is a docker.Spec or a kubernetes.Spec. Each embeds a [Spec], the part
// that both have. [FromJob] reads that part from a job.
//
// A [Place] is what their Start and Attach return: the connection of a connector.Connector. Its caller closes it. A
// [Config] has the facts about the build that both need.
package place
