package customexecutor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/pause"
)

const (
	// leaseVar names the variable with the job's lease, which config gives to the other calls.
	leaseVar = "STEPMUX_LEASE"
	// managerVar names the variable with the manager's socket, and systemSocket is its default.
	managerVar, systemSocket = "STEPMUX_MANAGER", "/run/stepmux-manager/manager.sock"
	// awayPause is the time between two attempts to reach a manager.
	awayPause = 100 * time.Millisecond
)

// awayLimit is how long a manager may be away, as during a restart. A test changes it.
var awayLimit = 20 * time.Second

const usage = `Driver of GitLab Runner's custom executor: jobs run on the VMs of a stepmux manager.

Usage, in the config.toml of a runner:
  config_args  = ["custom-executor", "config", "--builds-dir", "DIR", "--cache-dir", "DIR"]
  prepare_args = ["custom-executor", "prepare"]
  run_args     = ["custom-executor", "run"]
  cleanup_args = ["custom-executor", "cleanup"]

docs/gitlab.md has all of it. GitLab Runner adds the arguments of run.

Flags:
`

// Call is a call of the driver: its arguments after the program's name and the word custom-executor, and its
// environment.
type Call struct {
	Args []string
	// Alone says that the program is no other command than this one: its arguments have no word custom-executor.
	Alone bool
	// Env looks up a variable, as os.Getenv does.
	Env            func(name string) string
	Stdout, Stderr io.Writer
	// Version is the program's version.
	Version string
}

// driver is a call with its flags.
type driver struct {
	Call
	manager  string
	builds   string
	cache    string
	labels   []string
	grace    time.Duration
	failed   int // the exit code that says that the job's script failed
	system   int // the exit code of another failure
	codeFile string
	lease    string
}

// errUsage is the cause of errors about arguments.
func (c *Call) errUsage() error {
	separator := " "
	if c.Alone {
		separator = "-"
	}
	return fmt.Errorf("see stepmux%scustom-executor --help", separator)
}

// usage returns the help without its flags.
func (c *Call) usage() string {
	if c.Alone {
		return strings.ReplaceAll(usage, `"custom-executor", `, "")
	}
	return usage
}

// Main makes a call and returns the exit code for the program: 0, or BUILD_FAILURE_EXIT_CODE, or
// SYSTEM_FAILURE_EXIT_CODE. It takes SIGTERM, SIGINT and SIGHUP.
func Main(c Call) int {
	d := &driver{Call: c, failed: c.number("BUILD_FAILURE_EXIT_CODE", 1), system: c.number("SYSTEM_FAILURE_EXIT_CODE", 2)}
	d.codeFile, d.lease = c.Env("BUILD_EXIT_CODE_FILE"), c.Env(leaseVar)
	ctx, stop := endsignal.Until(context.Background())
	defer stop()
	code, err := d.call(ctx)
	if err == nil {
		return code
	}
	fmt.Fprintf(c.Stderr, "stepmux: %v\n", err)
	if code == 0 {
		code = d.system
	}
	return code
}

// number returns the number in a variable, from 1 to 255, or otherwise.
func (c *Call) number(name string, otherwise int) int {
	if n, err := strconv.Atoi(c.Env(name)); err == nil && n > 0 && n < 256 {
		return n
	}
	return otherwise
}

func (d *driver) call(ctx context.Context) (int, error) {
	fl := pflag.NewFlagSet("custom-executor", pflag.ContinueOnError)
	fl.SetOutput(io.Discard)
	fl.StringVar(&d.manager, "manager", "", "socket of the manager (default $"+managerVar+", else "+systemSocket+")")
	fl.StringVar(&d.builds, "builds-dir", "", "config: directory of the jobs' projects on the VM, an absolute path")
	fl.StringVar(&d.cache, "cache-dir", "", "config: directory of the jobs' caches on the VM, an absolute path")
	fl.StringArrayVar(&d.labels, "label", nil, "prepare: `NAME=VALUE` that the VM must have; repeatable")
	fl.DurationVar(&d.grace, "grace", 10*time.Second, "run: time between SIGTERM and SIGKILL for a script that is stopped")
	err := fl.Parse(d.Args)
	args := fl.Args()
	if errors.Is(err, pflag.ErrHelp) || len(args) > 0 && args[0] == "help" {
		fmt.Fprint(d.Stdout, d.usage()+fl.FlagUsages())
		return 0, nil
	}
	if err != nil || len(args) == 0 {
		return 0, fmt.Errorf("custom-executor needs config, prepare, run or cleanup: %w", errors.Join(err, d.errUsage()))
	}
	if d.manager == "" {
		d.manager = d.Env(managerVar)
	}
	if d.manager == "" {
		d.manager = systemSocket
	}
	switch name := args[0]; {
	case name == "config" && len(args) == 1:
		return 0, d.config(ctx)
	case name == "prepare" && len(args) == 1:
		return d.prepare(ctx)
	case name == "run" && len(args) == 3:
		return d.run(ctx, args[1], args[2])
	case name == "cleanup" && len(args) == 1:
		return 0, d.cleanup(ctx)
	default:
		return 0, fmt.Errorf("custom-executor %.200q: wrong arguments: %w", strings.Join(args, " "), d.errUsage())
	}
}

// config writes the configuration of the job. It fails if no manager answers.
func (d *driver) config(ctx context.Context) error {
	for name, dir := range map[string]string{"builds-dir": d.builds, "cache-dir": d.cache} {
		if dir != "" && !filepath.IsAbs(dir) {
			return fmt.Errorf("--%s %q: use an absolute path of the VM", name, dir)
		}
	}
	if err := d.awaitSocket(ctx); err != nil {
		return err
	}
	type program struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	return json.NewEncoder(d.Stdout).Encode(struct {
		Driver   program           `json:"driver"`
		Builds   string            `json:"builds_dir,omitempty"`
		Cache    string            `json:"cache_dir,omitempty"`
		Shared   bool              `json:"builds_dir_is_shared"` // else two jobs of a project would share a directory
		Shell    string            `json:"shell"`
		Variable map[string]string `json:"job_env"`
	}{program{"stepmux", d.Version}, d.builds, d.cache, true, "bash", map[string]string{leaseVar: newLease()}})
}

// awaitSocket waits until a manager takes connections.
func (d *driver) awaitSocket(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, awayLimit)
	defer cancel()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", d.manager)
		if err == nil {
			return conn.Close()
		}
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("the manager at %s does not admit this user: its socket-group must be a group of the user of "+
				"gitlab-runner: %w", d.manager, err)
		}
		if pause.For(ctx, awayPause) != nil {
			return fmt.Errorf("no manager listens at %s: %w", d.manager, err)
		}
	}
}

// connect returns a client of the manager once it is connected. The caller closes the connection.
func (d *driver) connect(ctx context.Context) (pb.ManagerClient, *grpc.ClientConn, error) {
	conn, err := pb.Dial(d.manager)
	if err != nil {
		return nil, nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, awayLimit)
	defer cancel()
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if !conn.WaitForStateChange(waiting, state) {
			_ = conn.Close() // never used
			if ctx.Err() != nil {
				return nil, nil, context.Cause(ctx)
			}
			once, cancel := context.WithTimeout(ctx, awayPause/2) // for one attempt
			defer cancel()
			return nil, nil, cmp.Or(d.awaitSocket(once), fmt.Errorf("the manager at %s does not answer", d.manager))
		}
		conn.Connect()
	}
	return pb.NewManagerClient(conn), conn, nil
}

// keepCode writes the exit code of the job's script, or removes that of an earlier stage: there is one file for all.
func (d *driver) keepCode(code int) error {
	if d.codeFile == "" {
		return nil
	}
	if code == 0 {
		if err := os.Remove(d.codeFile); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return os.WriteFile(d.codeFile, []byte(strconv.Itoa(code)+"\n"), 0o600)
}
