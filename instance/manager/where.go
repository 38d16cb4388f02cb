package manager

import (
	"errors"
	"fmt"

	"github.com/stepmux/stepmux/connector/place"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

// where is where a job runs, and its steps without the keys that say so. Without a place it runs on its instance
// itself.
type where struct {
	steps []byte
	place place.Description
}

// where returns where the job of a request runs.
func (m *Manager) where(req *pb.SubmitRequest) (w where, err error) {
	var own *place.Spec
	job, of := req.GetJob(), req.GetPipeline()
	if w.steps, own, err = place.FromJob(job.GetStepsFile(), job.GetSteps()); err != nil {
		return w, err
	}
	if own == nil && of.GetInImage() {
		if _, own, err = place.FromJob(job.GetStepsFile(), of.GetContainer()); err != nil {
			return w, err
		}
	}
	if w.place, err = m.placeOf(own, of.GetInImage()); err != nil {
		return w, fmt.Errorf("%s: %w", job.GetStepsFile(), err)
	}
	return w, nil
}

// placeOf returns the place of a job that describes its container by own, which may be nil. inImage says that the job
// runs in a container.
func (m *Manager) placeOf(own *place.Spec, inImage bool) (place.Description, error) {
	at, err := m.cfg.Place(own)
	if err == nil && at == nil && inImage {
		err = errNoImage
	}
	return at, err
}

// errNoImage is the error for a job of a pipeline in containers.
var errNoImage = errors.New("--in-image: the job names no image; the manager has one by --image")

// onInstance is the Config.Place of a manager whose builds run on the instances themselves.
func onInstance(own *place.Spec) (place.Description, error) {
	if own != nil {
		return nil, errors.New("this manager's builds do not run in containers: leave out the keys image and services")
	}
	return nil, nil
}
