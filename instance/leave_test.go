package instance

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
)

// attachedPlace is the container of a build that runs.
type attachedPlace struct {
	place.Place
	configure func()
	left      bool
	removed   bool
}

func (p *attachedPlace) Configure(*connector.Config) { p.configure() }
func (p *attachedPlace) Leave()                      { p.left = true }
func (p *attachedPlace) Close(context.Context) error { p.removed = !p.left; return nil }

// A manager that was shut down while it took on a build that ran in a container could remove the container.
func TestLeaveDuringAResumeLeavesTheContainer(t *testing.T) {
	group, err := NewGroup(vm("a", 1))
	require.NoError(t, err)
	p, err := NewProvider(Config{Group: group})
	require.NoError(t, err)
	defer p.Close()
	for name, moment := range map[string]func(at *attachedPlace, leave func()){
		"when it is found":       func(_ *attachedPlace, leave func()) { leave() },
		"when it is the build's": func(at *attachedPlace, leave func()) { at.configure = leave },
	} {
		t.Run(name, func(t *testing.T) {
			e := p.Executor(Build{ID: "b1"})
			left := make(chan error, 1)
			at := &attachedPlace{configure: func() {}}
			leave := func() {
				go func() { left <- e.Leave(t.Context()) }() // waited for below
				<-e.life.Done()
			}
			into := &connector.Config{Attach: "pod" + placeSocket + "/run/x.sock"}
			// Its error is of no interest: the build is left.
			_ = e.startPlace(t.Context(), into, func(bool, string) (place.Place, error) {
				moment(at, leave)
				return at, nil
			})
			require.NoError(t, <-left)
			require.True(t, at.left)
			require.False(t, at.removed)
		})
	}
}
