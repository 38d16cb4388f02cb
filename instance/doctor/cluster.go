package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stepmux/stepmux/connector/place/kubernetes"
)

// clusterTimeout bounds the examination of a cluster.
const clusterTimeout = 30 * time.Second

// ExamineCluster examines a Kubernetes cluster for builds in pods: whether its API server answers and accepts the
// login, and the rights of the login in the namespace. It creates no pod. It takes 30 s at most, and ends with ctx.
func ExamineCluster(ctx context.Context, cluster *kubernetes.Cluster) Report {
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	began := time.Now()
	r := Report{Instance: cluster.Name(), Addr: cluster.Server(), User: "namespace " + cluster.Namespace()}
	version, err := cluster.Check(ctx)
	if err != nil {
		r.add(failure("cluster", err.Error(), "check the cluster, the kubeconfig and its login"))
		r.skip("the cluster does not answer", "rights")
		r.finish(time.Since(began))
		return r
	}
	r.add(okay("cluster", "Kubernetes "+version+" answers"))
	rights, err := cluster.Rights(ctx)
	if err != nil {
		r.add(failure("rights", err.Error(), "check the kubeconfig's login"))
	}
	var has []string
	for _, right := range rights {
		name := right.Verb + " " + right.Resource
		switch {
		case right.Allowed:
			has = append(has, name)
		case right.Needed:
			r.add(failure("rights", strings.TrimSuffix("the login may not "+name+": "+right.Reason, ": "),
				fmt.Sprintf("give it a Role with that in namespace %s (docs/kubernetes.md has one)", cluster.Namespace())))
		default:
			r.add(warning("rights", "the login may not "+name, "add that to its Role (docs/kubernetes.md has one)",
				"errors of pods that do not start have the cluster's reasons"))
		}
	}
	if len(has) > 0 {
		r.add(okay("rights", "the login may "+strings.Join(has, ", ")))
	}
	r.finish(time.Since(began))
	return r
}
