//go:build tools

// Package control names the programs of the control plane that the tests start.
package control

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
