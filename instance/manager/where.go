package manager

import (
	"errors"
	"fmt"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// where is where a job runs, and its steps without the keys that say so. Without a place it runs on its instance
// itself.
type where struct {
	steps []byte
	place place.Description
}

// where returns where a job runs.
func (m *Manager) where(job *stepmuxv1.Job) (w where, err error) {
	var own *place.Spec
	if w.steps, own, err = place.FromJob(job.GetStepsFile(), job.GetSteps()); err != nil {
		return w, err
	}
	if w.place, err = m.cfg.Place(own); err != nil {
		return w, fmt.Errorf("%s: %w", job.GetStepsFile(), err)
	}
	return w, nil
}

// onInstance is the Config.Place of a manager whose builds run on the instances themselves.
func onInstance(own *place.Spec) (place.Description, error) {
	if own != nil {
		return nil, errors.New("this manager's builds do not run in containers: leave out the keys image and services")
	}
	return nil, nil
}
