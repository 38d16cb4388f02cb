package manager

import (
	"errors"
	"fmt"

	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/connector/place/kubernetes"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// where is where a job runs, and its steps without the keys that say so. With neither a container nor a pod it runs on
// its instance itself.
type where struct {
	steps     []byte
	container *docker.Spec
	pod       *kubernetes.Spec
}

// where returns where a job runs.
func (m *Manager) where(job *stepmuxv1.Job) (w where, err error) {
	var own *docker.Spec
	if w.steps, own, err = docker.FromJob(job.GetStepsFile(), job.GetSteps()); err != nil {
		return w, err
	}
	if w.container, w.pod, err = m.cfg.Place(own); err != nil {
		return w, fmt.Errorf("%s: %w", job.GetStepsFile(), err)
	}
	return w, nil
}

// onInstance is the Config.Place of a manager whose builds run on the instances themselves.
func onInstance(own *docker.Spec) (*docker.Spec, *kubernetes.Spec, error) {
	if own != nil {
		return nil, nil, errors.New("this manager's builds do not run in containers: leave out the keys image and services")
	}
	return nil, nil, nil
}
