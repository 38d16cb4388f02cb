// Package kubetest has Kubernetes clusters for tests. [Serve] serves the part of the API that builds in pods use, with
// the API server's own code for WebSockets; its pods are processes of this machine. [Start] starts a real cluster: an
// API server, a kubelet and their parts. The end of the test stops both.
package kubetest
