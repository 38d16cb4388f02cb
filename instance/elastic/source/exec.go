package source

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/instance/elastic"
	"github.com/stepmux/stepmux/internal/subprocess"
	"github.com/stepmux/stepmux/internal/termtext"
)

const (
	// version is that of the contract.
	version = 1
	// ConfigVar is the environment variable in which a program gets the configuration of its source, as JSON.
	ConfigVar = "STEPMUX_SOURCE_CONFIG"
	// exitTryLater is the exit code for ErrTryLater, EX_TEMPFAIL of sysexits.h.
	exitTryLater = 75
	// maxConfig bounds a configuration: Linux takes 128 KiB for a variable of the environment.
	maxConfig = 64 << 10
	// maxList bounds the answer to list, and maxAnswer others, in bytes.
	maxList, maxAnswer = 16 << 20, 1 << 20
	// maxVM bounds a VM in a list, in bytes.
	maxVM = 64 << 10
	// opTime bounds an operation, and createTime the creation of VMs.
	opTime, createTime = time.Minute, 15 * time.Minute
)

// ExecConfig describes an Exec.
type ExecConfig struct {
	// Command is the program, with arguments that come before the operation. Required.
	Command []string
	// Group is the name of the group, by which the program tells its VMs from others. Required.
	Group string
	// Settings are for the program alone: a JSON object. May be empty.
	Settings json.RawMessage
	// PassEnv are the variables of our environment that the program gets, besides PATH and HOME. If nil, it gets all
	// but those that begin with STEPMUX_.
	PassEnv []string
	// Logger receives the standard error of operations that have succeeded. If nil, nothing is logged.
	Logger *slog.Logger

	// opTime and createTime replace the constants in tests.
	opTime, createTime time.Duration
}

// Exec is a Source that runs a program for each operation. It has no state.
type Exec struct{ cfg ExecConfig }

// NewExec checks the configuration. It runs nothing.
func NewExec(cfg ExecConfig) (*Exec, error) {
	if err := subprocess.Look(cfg.Command); err != nil {
		return nil, err
	}
	if len(cfg.Settings) == 0 {
		cfg.Settings = json.RawMessage("{}")
	}
	var object map[string]json.RawMessage
	switch err := json.Unmarshal(cfg.Settings, &object); {
	case cfg.Group == "":
		return nil, errors.New("the group has no name")
	case err != nil || object == nil:
		return nil, errors.New("config must be a mapping")
	case len(cfg.Settings) > maxConfig:
		return nil, fmt.Errorf("config has %d bytes of JSON, at most %d are possible", len(cfg.Settings), maxConfig)
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.opTime, cfg.createTime = cmp.Or(cfg.opTime, opTime), cmp.Or(cfg.createTime, createTime)
	return &Exec{cfg}, nil
}

// Info implements Source.
func (e *Exec) Info(ctx context.Context) (Info, error) {
	var answer struct {
		head
		Name, Version string
		Max           int
	}
	request := map[string]any{"config": e.cfg.Settings}
	err := e.call(ctx, "info", request, e.cfg.opTime, maxAnswer, &answer, func() error {
		if answer.Max < 0 {
			return fmt.Errorf("max %d is negative", answer.Max)
		}
		return nil
	})
	return Info{
		Name: termtext.Short(answer.Name, maxName), Version: termtext.Short(answer.Version, maxName), Max: answer.Max,
	}, err
}

// List implements Source.
func (e *Exec) List(ctx context.Context) ([]VM, error) {
	var answer struct {
		head
		Instances *vmList
	}
	err := e.call(ctx, "list", map[string]any{"group": e.cfg.Group}, e.cfg.opTime, maxList, &answer, func() error {
		if answer.Instances == nil {
			return errors.New(`the answer has no "instances": no VMs are "instances":[]`)
		}
		return checkVMs(*answer.Instances)
	})
	if err != nil {
		return nil, err
	}
	return *answer.Instances, nil
}

// Create implements Source.
func (e *Exec) Create(ctx context.Context, r Request) (accepted int, ids []string, err error) {
	var answer struct {
		head
		Accepted *int
		IDs      []string
	}
	request := map[string]any{"group": e.cfg.Group, "count": r.Count, "request": r.ID, "labels": r.Labels}
	if r.Labels == nil {
		request["labels"] = map[string]string{}
	}
	if r.UserData != "" {
		request["user_data"] = r.UserData
	}
	err = e.call(ctx, "create", request, e.cfg.createTime, maxAnswer, &answer, func() error {
		switch {
		case answer.Accepted == nil:
			return errors.New(`the answer has no "accepted"`)
		case *answer.Accepted < 0 || *answer.Accepted > r.Count:
			return fmt.Errorf("accepted is %d: %d VMs were asked for", *answer.Accepted, r.Count)
		case len(answer.IDs) > *answer.Accepted:
			return fmt.Errorf("there are %d ids for %d accepted VMs", len(answer.IDs), *answer.Accepted)
		}
		return checkIDs(answer.IDs)
	})
	if err != nil {
		return 0, nil, err
	}
	return *answer.Accepted, answer.IDs, nil
}

// Delete implements Source.
func (e *Exec) Delete(ctx context.Context, ids []string, reason string) (deleted []string, err error) {
	var answer struct {
		head
		Deleted *[]string
	}
	request := map[string]any{"group": e.cfg.Group, "ids": ids, "reason": reason}
	err = e.call(ctx, "delete", request, e.cfg.opTime, maxAnswer, &answer, func() error {
		if answer.Deleted == nil {
			return errors.New(`the answer has no "deleted": for no VMs it is "deleted":[]`)
		}
		for _, id := range *answer.Deleted {
			if !slices.Contains(ids, id) {
				return fmt.Errorf("it has deleted %.160q, which was not asked for", id)
			}
		}
		return checkIDs(*answer.Deleted)
	})
	if err != nil {
		return nil, err
	}
	return *answer.Deleted, nil
}

// call runs an operation, and reads its answer. check checks it.
func (e *Exec) call(
	ctx context.Context, op string, request map[string]any, limit time.Duration, most int, answer answer,
	check func() error,
) error {
	request["v"] = version
	text, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("operation %s of the source: %w", op, err)
	}
	out, err := subprocess.Output(ctx, append(slices.Clone(e.cfg.Command), op), subprocess.Limit{
		Time: limit, Bytes: most, Input: bytes.NewReader(text), Env: e.environment(),
		Said: func(text string) {
			e.cfg.Logger.Debug("source says", "group", e.cfg.Group, "op", op, "text", termtext.Short(text, maxSaid))
		},
	})
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) && failed.ExitCode() == exitTryLater {
		err = fmt.Errorf("%w: %w", ErrTryLater, err)
	}
	if err == nil {
		if err = read(out, answer); err == nil {
			err = check()
		}
		if err != nil {
			err = fmt.Errorf("run %s: exit status 0, and a wrong answer: %w", e.cfg.Command[0], err)
		}
	}
	if err != nil {
		return fmt.Errorf("operation %s of the source: %w", op, err)
	}
	return nil
}

// maxSaid and maxName bound texts of a program, in bytes.
const maxSaid, maxName = 300, 80

// head is the part that all answers have.
type head struct{ V int }

func (h *head) version() int { return h.V }

type answer interface{ version() int }

// read reads an answer: one JSON object, of our version of the contract.
func read(text []byte, to answer) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return errors.New("the answer is empty")
	}
	if err := json.Unmarshal(text, to); err != nil {
		return fmt.Errorf("no answer in JSON: %w", err)
	}
	if to.version() != version {
		return fmt.Errorf(`the answer needs "v":%d, the version of the contract`, version)
	}
	return nil
}

// vmList reads a list of VMs, in a memory that is bounded by the VMs that are possible.
type vmList []VM

// UnmarshalJSON implements json.Unmarshaler.
func (l *vmList) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errors.New("instances must be a list")
	}
	for d.More() {
		var one json.RawMessage
		if err := d.Decode(&one); err != nil {
			return err
		}
		var vm VM
		switch {
		case len(*l) == elastic.MaxVMs:
			return fmt.Errorf("it lists more than %d VMs", elastic.MaxVMs)
		case len(one) > maxVM:
			return fmt.Errorf("a VM has %d bytes, at most %d are possible", len(one), maxVM)
		}
		if err := json.Unmarshal(one, &vm); err != nil {
			return err
		}
		*l = append(*l, vm)
	}
	return nil
}

// environment returns the environment of the program.
func (e *Exec) environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(line string) bool {
		name, _, _ := strings.Cut(line, "=")
		passed := e.cfg.PassEnv == nil || name == "PATH" || name == "HOME" || slices.Contains(e.cfg.PassEnv, name)
		return !passed || strings.HasPrefix(name, "STEPMUX_")
	})
	return append(env, ConfigVar+"="+string(e.cfg.Settings))
}
