package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/connector/place/kubernetes"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/buildinfo"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// clusterFlags name a Kubernetes cluster.
type clusterFlags struct {
	clusterConfig kubernetes.ClusterConfig
	clusterFlags  *pflag.FlagSet
}

func (f *clusterFlags) register(fl *pflag.FlagSet, usage string) {
	f.clusterFlags = fl
	fl.StringVar(&f.clusterConfig.Context, "kubernetes", "", usage)
	fl.Lookup("kubernetes").NoOptDefVal = currentContext
	fl.StringVar(&f.clusterConfig.Kubeconfig, "kubeconfig", "", "kubeconfig `FILE` of the cluster (default $KUBECONFIG, "+
		"else ~/.kube/config; in a pod without these, the pod's own service account)")
	fl.StringVar(&f.clusterConfig.Namespace, "namespace", "", "`NAMESPACE` of the pods (default the context's)")
	grouped(fl, podGroup)
}

// currentContext is the value of --kubernetes without an argument.
const currentContext = "."

// onCluster reports whether the flags name a cluster.
func (f *clusterFlags) onCluster() bool { return f.clusterFlags.Changed("kubernetes") }

// checkCluster returns an error if a flag of the cluster was given without --kubernetes.
func (f *clusterFlags) checkCluster(others ...string) error {
	for _, name := range append(others, "kubeconfig", "namespace") {
		if !f.onCluster() && f.clusterFlags.Changed(name) {
			return fmt.Errorf("--%s needs --kubernetes", name)
		}
	}
	return nil
}

// load returns the cluster.
func (f *clusterFlags) load(log *slog.Logger) (*kubernetes.Cluster, error) {
	cfg := f.clusterConfig
	if cfg.Context == currentContext {
		cfg.Context = ""
	}
	cfg.Logger, cfg.UserAgent = log, "stepmux/"+buildinfo.Version()
	return kubernetes.Load(cfg)
}

// podFlags describe the pods that builds run in.
type podFlags struct {
	clusterFlags
	initImage string
	template  string
	wait      time.Duration
}

func (f *podFlags) register(fl *pflag.FlagSet) {
	f.clusterFlags.register(fl, "run each build in a pod of its own, in the cluster of the kubeconfig's current "+
		"context, or of the context `[=CONTEXT]`; needs --image, or jobs with the key image")
	fl.StringVar(&f.initImage, "init-image", "",
		"`IMAGE` with a shell, for the init container that receives the step runner (default the build's image)")
	fileFlag(fl, &f.template, "pod-template", "`FILE` with a Pod in YAML, for everything without a flag: node "+
		"selector, tolerations, service account, secrets, volumes; its container named build runs the steps")
	timeFlag(fl, &f.wait, "schedule-timeout",
		"how long a pod may wait for a node, in a cluster that adds nodes (default: without a node the build fails)")
	grouped(fl, podGroup)
}

// notInPods are flags that cannot be used with pods.
var notInPods = append(
	vmconfig.Names(slices.DeleteFunc(new(vmconfig.Options).Flags(), func(f vmconfig.Flag) bool { return f.InPods })),
	"instance", "inventory", "docker", "container", "platform", "pids-limit", "tmpfs", "volume", "network", "add-host",
	"route", "runner-command",
	"max-age", "idle-timeout", "keepalive-interval", "keepalive-timeout", "session-limit",
)

// checkPods checks the flags.
func (f *podFlags) checkPods() error {
	if err := f.checkCluster("init-image", "pod-template", "schedule-timeout"); err != nil || !f.onCluster() {
		return err
	}
	for _, name := range notInPods {
		if f.clusterFlags.clusterFlags.Changed(name) {
			return fmt.Errorf("--%s does not work with --kubernetes (--pod-template has what a pod can have)", name)
		}
	}
	return nil
}

// placeOf returns where a job runs: in a container, in a pod or, if it returns nil, on the VM itself. own is what the
// job's keys image and services say, or nil.
func placeOf(box *imageFlags, pods *podFlags, own *place.Spec) (place.Description, error) {
	spec, err := box.container(own)
	switch {
	case err != nil:
		return nil, err
	case pods.onCluster():
		return pods.pod(spec)
	case spec == nil:
		return nil, nil
	default:
		return spec, nil
	}
}

// pod returns the pod of a job that asks for a container.
func (f *podFlags) pod(c *docker.Spec) (place.Description, error) {
	switch {
	case c == nil:
		return nil, errors.New("--kubernetes needs --image, or a job with image")
	case c.KeepEntrypoint:
		return nil, errors.New("--entrypoint keep does not work with --kubernetes: name the program")
	}
	spec := &kubernetes.Spec{Spec: c.Spec, InitImage: f.initImage, ScheduleTimeout: f.wait}
	if f.template != "" {
		text, err := os.ReadFile(f.template)
		if err != nil {
			return nil, err
		}
		spec.Template = text
	}
	return spec, spec.Check()
}

// vmsOrCluster returns the VMs or, as the only instance of a group, the cluster of the flags, and a function that ends
// what was started for them. ctx bounds the first call, which checks that the cluster can be used.
func (f *podFlags) vmsOrCluster(
	ctx context.Context, vms *vmFlags, log *slog.Logger,
) (*instance.Group, func(), error) {
	if !f.onCluster() {
		return vms.group(ctx, log)
	}
	if err := vms.needsVM(); err != nil {
		return nil, nil, err
	}
	if vms.capacity < 1 {
		return nil, nil, fmt.Errorf("--capacity %d: a cluster takes at least one build", vms.capacity)
	}
	cluster, err := f.load(log)
	if err != nil {
		return nil, nil, err
	}
	if _, err := cluster.Check(ctx); err != nil {
		return nil, nil, systemError(err)
	}
	name := strings.ReplaceAll(cluster.Name(), " ", "-") + "/" + cluster.Namespace()
	group, err := instance.NewGroup(instance.Instance{
		ID: name, Cluster: cluster, Capacity: vms.capacity, Options: vmconfig.Options{Limits: vms.vmOptions.Limits},
	})
	return group, cluster.Close, err
}
