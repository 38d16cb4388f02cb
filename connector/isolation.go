package connector

import (
	"fmt"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/termtext"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// maxReason bounds the VM's reason for its level, in bytes.
const maxReason = 400

// isolates returns an error if the program does not support the limits, build user or isolation level of the options.
func (cfg *Config) isolates(p *program.Program) error {
	demand, demands := cfg.Demand()
	if p.Kind != program.StepRunner || !demands {
		return nil
	}
	return &ServeError{
		ExitCode: -1, Err: fmt.Errorf("%s a stepmux on the VM, whose step runner is %v", demand.Needs, p),
		Hint: "install stepmux there" + demand.Otherwise,
	}
}

// isolationOf returns the isolation of a job that has ended. Its texts come from the VM.
func isolationOf(job *pb.JobState) program.Isolation {
	i := program.Isolation{
		Level: vmconfig.Level(job.GetIsolation()), Reason: termtext.Short(job.GetIsolationReason(), maxReason),
	}
	switch i.Level {
	case vmconfig.Off, vmconfig.Processes, vmconfig.Private:
	case "":
		if i.Reason == "" {
			i.Level = vmconfig.Off
			i.Reason = "the stepmux on the VM is older than this program and does not isolate builds"
		}
	default: // a newer version's level
		return program.Isolation{Reason: fmt.Sprintf("unknown level %.40q", job.GetIsolation())}
	}
	return i
}

// maxCPU is the most processor time that a build may report, in seconds: a day of ten thousand processors.
const maxCPU = 24 * 3600 * 10_000

// usageOf returns the build's usage up to the end of job. The figures come from the VM. A time that cannot be counts as
// not reported: JSON has no NaN and no infinity, and in a sum they would hide all other builds.
func usageOf(job *pb.JobState) program.Usage {
	used := program.Usage{
		PeakMemory: max(job.GetPeakMemoryBytes(), 0), LargestProcess: max(job.GetLargestProcessBytes(), 0),
	}
	if cpu := job.GetCpuSeconds(); cpu >= 0 && cpu <= maxCPU {
		used.CPU = cpu
	}
	return used
}

// Usage returns the build's usage up to the end of its last job. It is zero until a job has ended.
func (c *Connector) Usage() program.Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.usage
}

// isolated notes the build's isolation, for the build and for the VM.
func (c *Connector) isolated(i program.Isolation) {
	c.mu.Lock()
	c.isolation = i
	c.mu.Unlock()
	if i.Level != "" {
		c.cfg.VM.isolated(i)
	}
}

// Isolation returns the isolation of the build's last job. It is zero until a job has ended.
func (c *Connector) Isolation() program.Isolation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isolation
}

func (v *VM) isolated(i program.Isolation) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.level = i
}

// Isolation returns the isolation of the last build on the VM that reported it.
func (v *VM) Isolation() program.Isolation {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.level
}
