// Package docker runs the step runner of a build in a container.
//
// [Start] makes the container that a [Spec] describes, by the API of a Docker daemon that its caller can dial: one on
// this machine, or one on a VM by the VM's SSH connection. The container's main process is `stepmux steps relay`. Its
// standard streams, to which the daemon lets us attach, carry all bridges of the build. So nothing is executed in the
// container from outside, and the container ends when its manager does. A [Container] is the connection of a
// connector.Connector ([Container.Configure]). A [Daemon] remembers facts about one daemon for all its builds.
//
// The caller of Start calls [Container.Close], which removes the container. Containers that a manager or a daemon left
// when it died are removed when a later build of any manager starts on the same daemon (reap.go).
package docker
