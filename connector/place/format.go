package place

import (
	"fmt"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/yamltree"
)

// formatted are the keys of a job as Format writes them.
type formattedImage struct {
	Name       string            `json:"name"`
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Pull       Pull              `json:"pull_policy,omitempty"`
	Docker     map[string]string `json:"docker,omitempty"`
}

type formattedService struct {
	Name       string            `json:"name"`
	Alias      string            `json:"alias,omitempty"`
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Command    []string          `json:"command,omitempty"`
	Env        map[string]string `json:"variables,omitempty"`
	Health     *formattedHealth  `json:"healthcheck,omitempty"`
}

type formattedHealth struct {
	Test        string `json:"test,omitempty"`
	Disable     bool   `json:"disable,omitempty"`
	Interval    string `json:"interval,omitempty"`
	Timeout     string `json:"timeout,omitempty"`
	StartPeriod string `json:"start_period,omitempty"`
	Retries     int    `json:"retries,omitempty"`
}

// Format returns a text from which FromJob reads the image and the services of s, without its other fields. Of two
// variables of one name in the Env of a service, it has the later one.
func Format(s *Spec) (string, error) {
	var text strings.Builder
	add := func(key string, value any) error {
		line, err := yamltree.Format(value)
		if err != nil {
			return fmt.Errorf("format %s: %w", key, err)
		}
		fmt.Fprintf(&text, "%s: %s\n", key, line)
		return nil
	}
	if s.Image != "" {
		image := formattedImage{Name: s.Image, Entrypoint: s.Entrypoint, Pull: s.Pull, Docker: map[string]string{}}
		if s.User != "" {
			image.Docker["user"] = s.User
		}
		if s.Platform != "" {
			image.Docker["platform"] = s.Platform
		}
		if err := add(imageKey, image); err != nil {
			return "", err
		}
	}
	services := []formattedService{}
	for _, of := range s.Services {
		one := formattedService{of.Image, of.Alias, of.Entrypoint, of.Command, map[string]string{}, formatHealth(of.Health)}
		for _, entry := range of.Env {
			name, value, _ := strings.Cut(entry, "=")
			one.Env[name] = value
		}
		services = append(services, one)
	}
	if len(services) == 0 {
		return text.String(), nil
	}
	err := add(servicesKey, services)
	return text.String(), err
}

func formatHealth(h *Health) *formattedHealth {
	if h == nil {
		return nil
	}
	span := func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return d.String()
	}
	return &formattedHealth{
		Test: h.Test, Disable: h.Disabled, Interval: span(h.Interval), Timeout: span(h.Timeout),
		StartPeriod: span(h.StartPeriod), Retries: h.Retries,
	}
}
