package doors

import (
	"os"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/remote/step/action"
)

// NodeVariable is the environment variable with the path of the program node for actions.
const NodeVariable = "STEP_RUNNER_NODE"

// baseVariable is the environment variable with the mirror of actions. A relay starts step runners without flags, but
// with its environment.
const baseVariable = "STEPMUX_ACTIONS_BASE"

// ActionDefaults returns how GitHub Actions run without flags.
func ActionDefaults() action.Config {
	return action.Config{Base: os.Getenv(baseVariable), Node: os.Getenv(NodeVariable)}
}

// ActionFlags defines the flags that say how GitHub Actions run.
func ActionFlags(fl *pflag.FlagSet, cfg *action.Config) {
	fl.StringVar(&cfg.Base, "actions-base", os.Getenv(baseVariable),
		"take actions from this `URL` or directory (default STEPMUX_ACTIONS_BASE, else https://github.com)")
	fl.BoolVar(&cfg.RequirePinned, "require-pinned", false,
		"refuse actions whose revision is not a full commit, and images without a digest")
	fl.StringVar(&cfg.Node, "node", os.Getenv(NodeVariable),
		"the `program` that runs actions for node (default STEP_RUNNER_NODE, the newest of the tool cache, or that of PATH)")
	fl.StringVar(&cfg.Docker, "docker", "", "the `program` that runs docker actions (default docker, else podman)")
	fl.BoolVar(&cfg.DockerSocket, "docker-socket", false,
		"give docker actions the docker daemon's socket, which lets them control the machine")
	fl.Lookup("node").DefValue, fl.Lookup("actions-base").DefValue = "", ""
}
