package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Labels and annotations of the pods that this package makes.
const (
	labelBuild = "dev.stepmux.build" // the pod's name, which has the build's ID in it
	// noteStart is how many seconds, at most, the pod's manager waits until the pod runs.
	noteStart = "dev.stepmux.start-timeout"
)

const (
	// reapEvery is the interval of searches for pods that were left behind; reapTimeout bounds one search.
	reapEvery, reapTimeout = time.Minute, time.Minute
	// reapSlack is how long a pod is left alone after its time: its manager may be about to remove it.
	reapSlack = time.Minute
)

// reap removes pods that a manager left behind when it died. A running pod is left alone: it ends when its linger is
// over, or by its deadline.
func (c *Cluster) reap(ctx context.Context) {
	_, _ = c.reaped.Do(ctx, func(ctx context.Context) (struct{}, time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, reapTimeout)
		defer cancel()
		if err := c.reapNow(ctx); err != nil && ctx.Err() == nil {
			c.logger.Warn("pods that were left could not be removed", "error", err)
		}
		return struct{}{}, reapEvery, nil
	})
}

func (c *Cluster) reapNow(ctx context.Context) error {
	const op = "look for pods that were left"
	query := url.Values{"labelSelector": {labelBuild}, "limit": {"500"}}
	var failed []error
	for {
		var found struct {
			Metadata struct{ Continue string }
			Items    []object
		}
		now, err := c.call(ctx, op, http.MethodGet, c.podPath(""), query, nil, &found)
		if err != nil || now.IsZero() { // without the server's clock, no pod's age is known
			return errors.Join(append(failed, err)...)
		}
		failed = append(failed, c.reapPods(ctx, found.Items, now))
		if found.Metadata.Continue == "" {
			return errors.Join(failed...)
		}
		query.Set("continue", found.Metadata.Continue)
	}
}

// reapPods removes those of the pods that were left.
func (c *Cluster) reapPods(ctx context.Context, pods []object, now time.Time) error {
	var failed []error
	for i := range pods {
		pod := &pods[i].Metadata
		if pod.DeletionTimestamp != nil || !pods[i].left(now) {
			continue
		}
		if err := c.deletePod(ctx, pod.Name, pod.UID); err != nil {
			failed = append(failed, err)
			continue
		}
		c.logger.Info("pod that was left removed", "pod", pod.Name)
	}
	return errors.Join(failed...)
}

// left reports whether the manager of a pod has died, by the clock of the API server.
func (o *object) left(now time.Time) bool {
	made := o.Metadata.CreationTimestamp
	if o.ended() {
		for _, s := range o.Status.ContainerStatuses {
			if end := s.State.Terminated; end != nil && end.FinishedAt.After(made) {
				made = end.FinishedAt
			}
		}
		return now.Sub(made) > reapSlack
	}
	wait, err := strconv.Atoi(o.Metadata.Annotations[noteStart])
	running := o.container(buildName).State.Running != nil
	return err == nil && !running && now.Sub(made) > time.Duration(wait)*time.Second+reapSlack
}

// deletePod deletes a pod. It does nothing if the pod is gone or another pod has its name, by its uid unless that is
// empty.
func (c *Cluster) deletePod(ctx context.Context, name, uid string) error {
	body := dict{"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 1}
	if uid != "" {
		body["preconditions"] = dict{"uid": uid}
	}
	_, err := c.call(ctx, fmt.Sprintf("remove pod %s", name), http.MethodDelete, c.podPath(name), nil, body, nil)
	if isCode(err, http.StatusNotFound) || isCode(err, http.StatusConflict) {
		return nil
	}
	return err
}
