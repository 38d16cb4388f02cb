// Package place describes where a build's step runner runs, if not on a VM itself: in a container (package docker) or
// in a pod (package kubernetes).
//
// A [Place] is what their Start and Attach return: the connection of a connector.Connector. Its caller closes it. A
// [Config] has what both need to know about the build.
package place
