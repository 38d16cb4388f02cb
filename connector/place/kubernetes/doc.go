// Package kubernetes runs the step runner of a build in a pod.
//
// [Load] reads the configuration of a [Cluster], as kubectl does. [Start] makes the [Pod] that a [Spec] describes, and
// another one if a fault of the node ends it before the build begins. Its init container takes the step runner's
// program by an exec, so the image needs no stepmux. One exec in the pod carries `stepmux steps relay`, and by that
// all bridges of the build (link.go). The step runner lingers: when the exec is cut, because the API server or the
// kubelet was restarted or a load balancer hung up, the next exec goes on from the offsets where the last one stopped.
// The result of a build comes from the record of its job and never from the end of an exec (ending.go; stream.go and
// spdy.go are the two protocols). [Attach] finds the pod of a build that another process has begun.
//
// A Pod makes the connections of a connector.Connector ([Pod.Configure]). The caller of Start calls [Pod.Close],
// which removes the pod. Pods that a manager left when it died end by themselves, and are removed when a later build
// starts in the same namespace (reap.go).
package kubernetes
