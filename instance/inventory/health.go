package inventory

import (
	"math"
	"strconv"
	"time"

	"github.com/docker/go-units"
	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/instance/healthcheck"
)

// health reads the limits of a VM's health. Those that are not given are those of the defaults; 0 is no limit.
func (r *reader) health(n *yaml.Node, of healthcheck.Limits) healthcheck.Limits {
	known := []string{"free_space", "free_inodes", "free_memory", "load", "clock_skew"}
	for _, e := range r.Known(r.Mapping(n, "health"), "health", known) {
		text := r.text(e.Value, e.Key)
		var err error
		switch e.Key {
		case "free_space":
			of.FreeSpace, err = units.RAMInBytes(text)
		case "free_inodes":
			of.FreeInodes, err = strconv.ParseInt(text, 10, 64)
		case "free_memory":
			of.FreeMemory, err = units.RAMInBytes(text)
		case "load":
			of.Load, err = strconv.ParseFloat(text, 64)
		case "clock_skew":
			of.ClockSkew, err = time.ParseDuration(text)
		}
		isNumber := !math.IsNaN(of.Load) && !math.IsInf(of.Load, 0)
		if least := min(of.FreeSpace, of.FreeInodes, of.FreeMemory, int64(of.ClockSkew)); err != nil || least < 0 ||
			!isNumber || of.Load < 0 {
			r.Failf(e.Value, "%s %q cannot be used: %s", e.Key, text, healthForms[e.Key])
		}
	}
	return of
}

// healthForms say how the limits are written.
var healthForms = map[string]string{
	"free_space":  "write a size such as 2GiB, or 0 for no limit",
	"free_inodes": "write a number of files such as 10000, or 0 for no limit",
	"free_memory": "write a size such as 512MiB, or 0 for no limit",
	"load":        "write a number such as 4, for each processor, or 0 for no limit",
	"clock_skew":  "write a duration such as 30s, or 0 for no limit",
}
