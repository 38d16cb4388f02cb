package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/internal/termtext"
)

// object is the part of the API's description of a pod that this package reads.
type object struct {
	Metadata struct {
		Name, UID, ResourceVersion string
		CreationTimestamp          time.Time
		DeletionTimestamp          *time.Time
		Annotations                map[string]string
	}
	Spec struct {
		NodeName   string
		Containers []struct{ Name, Image string }
	}
	Status struct {
		Phase, Reason, Message string
		Conditions             []struct{ Type, Status, Reason, Message string }
		InitContainerStatuses  []containerStatus
		ContainerStatuses      []containerStatus
	}
}

// containerStatus is the state of one container.
type containerStatus struct {
	Name, ImageID, ContainerID string
	Ready                      bool
	State                      struct {
		Waiting    *waiting
		Running    *struct{}
		Terminated *termination
	}
	LastState struct {
		Terminated *termination
	}
}

// waiting is why a container does not run yet.
type waiting struct{ Reason, Message string }

// lastEnd returns how the container ended the last time, even if it was restarted; nil if it has never ended.
func (s *containerStatus) lastEnd() *termination {
	return cmp.Or(s.State.Terminated, s.LastState.Terminated)
}

// termination is the end of a container.
type termination struct {
	ExitCode        int
	Reason, Message string
	FinishedAt      time.Time
}

// The phases of a pod that are asked for.
const phaseSucceeded, phaseFailed = "Succeeded", "Failed"

// ended reports whether the steps' container has ended, or the whole pod. Other containers may run on: those of the
// template do, and services take their time to end.
func (o *object) ended() bool {
	return o.Status.Phase == phaseSucceeded || o.Status.Phase == phaseFailed ||
		o.container(buildName).State.Terminated != nil
}

// container returns the status of a container. It is empty until the kubelet has reported it.
func (o *object) container(name string) containerStatus {
	for _, s := range slices.Concat(o.Status.ContainerStatuses, o.Status.InitContainerStatuses) {
		if s.Name == name {
			return s
		}
	}
	return containerStatus{}
}

// image returns the name of the image of the steps' container.
func (o *object) image() string {
	for _, c := range o.Spec.Containers {
		if c.Name == buildName {
			return c.Image
		}
	}
	return ""
}

var (
	// stuckReasons are permanent reasons for a container to wait.
	stuckReasons = []string{
		"ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable", "CreateContainerConfigError",
		"CrashLoopBackOff",
	}
	// shakyReasons are reasons that may be transient: the container runtime may be restarting.
	shakyReasons = []string{"CreateContainerError", "RunContainerError", "ImageInspectError", "PreCreateHookError"}
)

// shaky reports whether the reason may be transient. A kubelet that has just started, or whose API server is slow,
// does not have the secret of a variable yet. One that starts many pods at once pulls some of the images later. pull is
// the last error of a pull.
func (w *waiting) shaky(pull string) bool {
	switch {
	case w == nil:
		return false
	case w.Reason == "CreateContainerConfigError":
		return strings.HasPrefix(w.Message, "failed to sync ")
	case w.Reason == "ImagePullBackOff":
		return strings.Contains(cmp.Or(pull, w.Message), "pull QPS exceeded")
	default:
		return slices.Contains(shakyReasons, w.Reason)
	}
}

// shaky reports whether the pod waits for a reason that may be transient. pulls are the last errors of image pulls, by
// container.
func (o *object) shaky(pulls map[string]string) bool {
	for _, s := range slices.Concat(o.Status.InitContainerStatuses, o.Status.ContainerStatuses) {
		if s.State.Waiting.shaky(pulls[s.Name]) {
			return true
		}
	}
	return false
}

// stuck returns why the pod will not start, or "", and whether another pod might. pulls are the last errors of image
// pulls, by container. late means that transient reasons have lasted too long.
func (o *object) stuck(pulls map[string]string, late bool) (why string, another bool) {
	for _, s := range slices.Concat(o.Status.InitContainerStatuses, o.Status.ContainerStatuses) {
		switch w := s.State.Waiting; {
		case w == nil || w.shaky(pulls[s.Name]) && !late:
		case w.shaky(pulls[s.Name]):
			return fmt.Sprintf("container %s: %s: %s", s.Name, w.Reason, w.Message), true
		case slices.Contains(stuckReasons, w.Reason):
			text := fmt.Sprintf("container %s: %s: %s", s.Name, w.Reason, cmp.Or(pulls[s.Name], w.Message))
			if end := s.lastEnd(); end != nil {
				text += "; it ended: " + end.text()
			}
			return text, false
		}
		if end := s.State.Terminated; end != nil && s.Name == initName && end.ExitCode != 0 {
			return "container " + s.Name + ": " + end.text(), end.ofNode()
		}
	}
	return "", false
}

// endReasons are reasons for a node to end or refuse a pod that do not apply to another pod.
var endReasons = []string{
	"NodeAffinity", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "UnexpectedAdmissionError",
}

// ofNode reports whether the pod has ended, or is being deleted, because of its node: a drain, a preemption, a
// restart of the kubelet or of the container runtime.
func (o *object) ofNode() bool {
	for _, c := range o.Status.Conditions {
		if c.Type == "DisruptionTarget" && c.Status == "True" {
			return true
		}
	}
	if o.Metadata.DeletionTimestamp != nil { // it was told to end, and its containers are killed
		return false
	}
	for _, s := range slices.Concat(o.Status.InitContainerStatuses, o.Status.ContainerStatuses) {
		if end := s.State.Terminated; end != nil && end.ofNode() && (s.Name == initName || s.Name == buildName) {
			return true
		}
	}
	// A kubelet that lacks something refuses a pod for OutOfcpu, OutOfmemory or OutOfpods: the scheduler had not known.
	return slices.Contains(endReasons, o.Status.Reason) || strings.HasPrefix(o.Status.Reason, "OutOf")
}

// ofNode reports whether the container ended without an exit of its process, or was not started, and its image is not
// to blame.
func (t *termination) ofNode() bool {
	switch t.Reason {
	case "ContainerStatusUnknown", "Unknown": // the terms of the kubelet and of containerd
		return true
	case "StartError", "ContainerCannotRun":
		return !slices.ContainsFunc(imageFaults, func(s string) bool { return strings.Contains(t.Message, s) })
	case "OOMKilled":
		return false
	default:
		return t.ExitCode == place.Killed
	}
}

// imageFaults are parts of the messages about containers that can never start.
var imageFaults = []string{"not found", "no such file", "permission denied", "exec format error", "not a directory"}

// pullErrors records the errors of image pulls in pulls, by container.
func (o *object) pullErrors(pulls map[string]string) {
	for _, s := range slices.Concat(o.Status.InitContainerStatuses, o.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Reason == "ErrImagePull" {
			pulls[s.Name] = w.Message
		}
	}
}

// unschedulable returns why the scheduler has found no node, or "" if it has.
func (o *object) unschedulable() string {
	for _, c := range o.Status.Conditions {
		if c.Type == "PodScheduled" && c.Status == "False" && c.Reason == "Unschedulable" {
			return "Unschedulable: " + c.Message
		}
	}
	return ""
}

// endText returns why a pod has ended, or is being deleted.
func (o *object) endText() string {
	var all []string
	add := func(texts ...string) {
		texts = slices.DeleteFunc(texts, func(s string) bool { return s == "" })
		if len(texts) > 0 {
			all = append(all, strings.Join(texts, ": "))
		}
	}
	for _, c := range o.Status.Conditions {
		if c.Type == "DisruptionTarget" && c.Status == "True" {
			add(c.Reason, c.Message)
		}
	}
	add(o.Status.Reason, o.Status.Message)
	for _, s := range slices.Concat(o.Status.InitContainerStatuses, o.Status.ContainerStatuses) {
		if end := s.State.Terminated; end != nil && (end.ExitCode != 0 || s.Name == buildName) {
			add("container "+s.Name, end.text())
		}
	}
	return strings.Join(all, "; ")
}

// deletedText returns that a pod was deleted, and the reason if it is known.
func (o *object) deletedText() string {
	if text := o.endText(); text != "" {
		return "the pod was deleted (" + text + ")"
	}
	return "the pod was deleted"
}

// text describes the end of a container.
func (t *termination) text() string {
	text := fmt.Sprintf("exit status %d", t.ExitCode)
	if t.Reason != "" && t.Reason != "Error" && t.Reason != "Completed" {
		text = t.Reason + ", " + text
	}
	if said := strings.TrimSpace(t.Message); said != "" {
		text += "; it said: " + said
	}
	return text
}

// oom reports whether the container was killed because it ran out of memory.
func (t *termination) oom() bool { return t != nil && t.Reason == "OOMKilled" }

// foreignText makes a text of the cluster fit for a message.
func foreignText(text string) string { return termtext.Line(termtext.Cut(text, maxText)) }

// maxEvents is how many events an error quotes.
const maxEvents = 5

// events returns the last warnings about a pod, for an error. It returns "" if there are no warnings or they may not
// be read.
func (c *Cluster) events(ctx context.Context, uid string) string {
	var found struct {
		Items []struct {
			Type, Reason, Message string
		}
	}
	query := url.Values{"fieldSelector": {"involvedObject.uid=" + uid}, "limit": {"100"}}
	at := "/api/v1/namespaces/" + c.namespace + "/events"
	if _, err := c.call(ctx, "read the events of a pod", http.MethodGet, at, query, nil, &found); err != nil {
		c.logger.Debug("the events of a pod are not known", "error", err)
		return ""
	}
	var texts []string
	for _, e := range found.Items {
		if text := e.Reason + ": " + e.Message; e.Type != "Normal" && !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	texts = texts[max(0, len(texts)-maxEvents):]
	return foreignText(strings.Join(texts, "; "))
}
