package kubernetes

import (
	"context"
	"fmt"
	"net/http"
)

// Right is one thing that builds in pods must be allowed to do in a namespace.
type Right struct {
	Verb, Resource string // such as create, pods/exec
	Allowed        bool
	// Needed is true if builds fail without it. The other rights make errors clearer.
	Needed bool
	Reason string // why it is not allowed, if the cluster reports it; untrusted text
}

// needed are the rights that builds need. An exec over a WebSocket needs the verb get, and since Kubernetes 1.35
// create.
var needed = []Right{
	{Verb: "create", Resource: "pods", Needed: true},
	{Verb: "get", Resource: "pods", Needed: true},
	{Verb: "list", Resource: "pods", Needed: true},
	{Verb: "watch", Resource: "pods", Needed: true},
	{Verb: "delete", Resource: "pods", Needed: true},
	{Verb: "get", Resource: "pods/exec", Needed: true},
	{Verb: "create", Resource: "pods/exec", Needed: true},
	{Verb: "list", Resource: "events"},
}

// Rights asks the API server which of the rights that builds need this login has.
func (c *Cluster) Rights(ctx context.Context) ([]Right, error) {
	all := make([]Right, len(needed))
	for i, right := range needed {
		resource, sub := right.Resource, ""
		if resource == "pods/exec" {
			resource, sub = "pods", "exec"
		}
		body := dict{
			"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
			"spec": dict{"resourceAttributes": dict{
				"namespace": c.namespace, "verb": right.Verb, "resource": resource, "subresource": sub,
			}},
		}
		var answer struct {
			Status struct {
				Allowed bool
				Reason  string
			}
		}
		op := fmt.Sprintf("ask whether the login may %s %s in namespace %s", right.Verb, right.Resource, c.namespace)
		_, err := c.call(ctx, op, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", nil, body,
			&answer)
		if err != nil {
			return nil, err
		}
		right.Allowed, right.Reason = answer.Status.Allowed, foreignText(answer.Status.Reason)
		all[i] = right
	}
	return all, nil
}

// Server returns the address of the API server.
func (c *Cluster) Server() string { return c.base.Redacted() }
