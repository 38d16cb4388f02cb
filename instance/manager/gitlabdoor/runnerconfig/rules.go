package runnerconfig

import (
	"fmt"
	"maps"
	"net"
	"strings"
)

// rule says what becomes of a key: do converts it, a note says why it has no place and what to do, and without both the
// key is a table whose keys have rules. A note of a table is for all its keys.
type rule struct {
	do        func(c *conversion, key string, value any)
	note      string
	executors []string // that use the table; empty: all
}

// inContainers are the executors whose jobs run in containers.
var inContainers = []string{
	"docker", "docker-windows", "docker+machine", "docker-ssh", "docker-ssh+machine", "docker-autoscaler",
}

const (
	inJobs   = "write it into the .gitlab-ci.yml of the projects, under default:"
	needless = "not needed here"
)

// rules are those of all keys, by their names in lower case.
var rules = joined(global, runnerRules, machineRules, dockerRules, kubernetesRules)

// notes gives keys the same note. Their names follow a prefix.
func notes(prefix, note, keys string) map[string]rule {
	all := map[string]rule{}
	for _, key := range strings.Fields(keys) {
		all[prefix+key] = rule{note: note}
	}
	return all
}

func joined(parts ...map[string]rule) map[string]rule {
	all := map[string]rule{}
	for _, part := range parts {
		maps.Copy(all, part)
	}
	return all
}

var global = joined(map[string]rule{
	"concurrent":     number(func(c *conversion, n int) { c.concurrent = n }),
	"log_level":      text(level),
	"listen_address": text(listen),
	"log_format": text(func(c *conversion, name string) {
		if name == "json" {
			c.set("log-format", name)
		}
	}),
},
	notes("", "the manager asks when it has a free slot: every 3 s, or the server holds the question", "check_interval"),
	notes("", "a connection that is not used ends after 90 s", "connection_max_age"),
	notes("", "there is no such log: builds --output json and /metrics have the figures", "experimental"),
	notes("", ofLogs, "labels log_field_dual_emit_target log_field_schema_version"),
	notes("", noMachines, "machine"),
	notes("", "errors are in the log and in /metrics alone", "sentry_dsn"),
	notes("", "jobs have no terminal here", "session_server"),
	notes("", "a restart ends no job: the next manager goes on with all of them", "shutdown_timeout"),
	notes("", "jobs run as the user of the VM: the key user of the inventory, or build-user", "user"),
)

const (
	ofLogs     = "it is for logs and metrics of GitLab Runner; those of the manager name the server and the job"
	noMachines = "Docker Machine is not used here: list the VMs in the inventory"
	ofManager  = "caches are kept by the manager and go to a VM once. No store is needed; keep-files bounds them"
	asksAgain  = "a server that fails is asked again after 1 to 30 s, and ps tells it"
	ofLimits   = "build-memory, build-cpus and build-pids give each job a cgroup"
)

// runnerRules are those of all executors.
var runnerRules = joined(map[string]rule{
	"runners.name":  text(func(*conversion, string) {}), // see nameOf
	"runners.url":   text(func(c *conversion, t string) { c.current.url = strings.TrimRight(t, "/") }),
	"runners.token": text(func(c *conversion, t string) { c.current.token = t }),
	"runners.limit": number(func(c *conversion, n int) { c.current.limit = n }),
	"runners.executor": text(func(c *conversion, name string) {
		if name == "docker-windows" {
			c.note("executor: VMs with Windows are not supported")
		}
	}),
	"runners.environment":   list(environment),
	"runners.tls-ca-file":   text(func(c *conversion, t string) { c.current.ca = t }),
	"runners.tls-cert-file": text(func(c *conversion, t string) { c.current.cert = t }),
	"runners.tls-key-file":  text(func(c *conversion, t string) { c.current.key = t }),
	"runners.shell": text(func(c *conversion, name string) {
		if name != "bash" {
			c.note("shell: scripts run with bash, or with sh in a container whose image has no bash")
		}
	}),
	"runners.id": ignored, "runners.token_obtained_at": ignored, // the server knows them by the token
},
	notes("runners.", "stepmux gitlab check says when the token ends; a new one is not asked for", "token_expires_at"),
	notes("runners.", "the times of uploads are fixed", "artifact"),
	notes("runners.", "each job has a new directory; temp_dir in the inventory says where", "builds_dir custom_build_dir"),
	notes("runners.", ofManager, "cache cache_dir"),
	notes("runners.", needless, "clean_git_config proxy_exec safe_directory_checkout strict_check_interval"),
	notes("runners.", "the VMs use the URL that the server sends: add a name to /etc/hosts, or insteadOf to git's "+
		"settings",
		"clone_url"),
	notes("runners.", "no driver is called: jobs run on VMs, by SSH. Install there what the driver prepares", "custom"),
	notes("runners.", "CI_DEBUG_TRACE has no effect", "debug_trace_disabled"),
	notes("runners.", "see stepmux gitlab check, stepmux doctor and stepmux manager --check", "experimental"),
	notes("runners.", "there are no feature flags", "feature_flags"),
	notes("runners.", "the timeout of the job counts", "get_sources_timeout"),
	notes("runners.", "a final state is told until the server takes it", "job_status_final_update_retry_limit"),
	notes("runners.", ofLogs, "labels"),
	notes("runners.", "/metrics has how long builds wait", "monitoring"),
	notes("runners.", "the limit of the server counts; keep-logs bounds all logs here", "output_limit"),
	notes("runners.", inJobs+" as before_script and after_script", "pre_build_script post_build_script"),
	notes("runners.", inJobs+" hooks:", "pre_get_sources_script post_get_sources_script"),
	notes("runners.", "a job has its slot before it is taken; connect-wait bounds the connection", "prepare_timeout"),
	notes("runners.", "let your Prometheus ask the VMs itself", "referees"),
	notes("runners.", "the manager asks for one job at a time, and again at once after each", "request_concurrency"),
	notes("runners.", ofLimits, "slot_cgroup_template use_slot_cgroups"),
	notes("runners.", "bootstrap copies stepmux to VMs and into containers", "step_runner_image"),
	notes("runners.", asksAgain, "unhealthy_interval unhealthy_requests_limit"),
)

// machineRules are those of executors with VMs.
var machineRules = joined(map[string]rule{
	"runners.ssh":      table("ssh", "docker-ssh", "docker-ssh+machine", "virtualbox", "parallels"),
	"runners.ssh.host": ignored, "runners.ssh.port": ignored, "runners.ssh.user": ignored, // see sshInstance
	"runners.ssh.identity_file":    setsFile("identity"),
	"runners.ssh.known_hosts_file": setsFile("known-hosts"),

	"runners.autoscaler":                           table("docker-autoscaler", "instance"),
	"runners.autoscaler.capacity_per_instance":     number(func(c *conversion, n int) { c.set("capacity", n) }),
	"runners.autoscaler.connector_config":          table(),
	"runners.autoscaler.connector_config.key_path": setsFile("identity"),
	"runners.autoscaler.connector_config.username": text(func(c *conversion, t string) {
		c.note(fmt.Sprintf("autoscaler.connector_config.username: write user: %s into the defaults of the inventory", t))
	}),
},
	notes("runners.ssh.", "logins are by keys: add one to authorized_keys of the VM, and name it by identity", "password"),
	notes("runners.ssh.", "host keys are always verified; host-key: first-use keeps those that are seen first",
		"disable_strict_host_key_checking"),
	notes("runners.", "a job runs on the VM itself, unless it names an image", "instance"),
	notes("runners.", noMachines, "machine"),
	notes("runners.", "no VM is made for a job: list VMs that run in the inventory; build-user and isolation keep jobs "+
		"apart",
		"parallels virtualbox"),
	notes("runners.autoscaler.", "write it into the inventory, as max_uses", "max_use_count"),
	notes("runners.autoscaler.connector_config.", "logins are by keys: name one by identity", "password"),
	notes("runners.autoscaler.connector_config.", "see keepalive-interval, keepalive-timeout and connect-wait",
		"keepalive timeout"),
	notes("runners.autoscaler.connector_config.", needless, "arch os use_static_credentials"),
	notes("runners.autoscaler.connector_config.", "VMs are reached by SSH, at their address in the inventory",
		"protocol protocol_port use_external_addr"),
	notes("runners.autoscaler.", "no plugin makes VMs: let a tool of your cloud write the inventory, which is read again "+
		"when it changes", `delete_instances_on_shutdown deletion_retry_interval failure_threshold
		instance_acquire_timeout log_external_ip log_internal_ip max_instances plugin plugin_config policy
		reservation_throttling scale_throttle shutdown_deletion_interval shutdown_deletion_retries update_interval
		update_interval_when_expecting`),
	notes("runners.autoscaler.", "/metrics has other figures: docs/fleet.md", `instance_creation_time_buckets
		instance_deletion_time_buckets instance_is_running_time_buckets instance_life_duration_buckets
		instance_operation_time_buckets instance_readiness_time_buckets`),
	notes("runners.autoscaler.", "see connect-wait: a VM that cannot be reached gets no jobs", "instance_ready_command"),
	notes("runners.autoscaler.", "build-user and isolation keep jobs apart", "vm_isolation"),
	notes("runners.autoscaler.", "the directory state has all that is kept", "state_storage"),
)

// inventory is the file with the VMs.
const inventory = "/etc/stepmux/fleet.yml"

// vms says on which VMs the jobs run.
func (c *conversion) vms(r *runner) {
	switch r.executor {
	case "kubernetes":
		for _, other := range c.executors {
			if other != "kubernetes" {
				c.note("executor: a manager runs its jobs in pods or on VMs: run another manager for this one")
				return
			}
		}
		if c.values["kubernetes"] == nil {
			c.set("kubernetes", true)
		}
		return
	case "ssh":
		c.sshInstance(r)
		return
	case "shell":
		c.note("executor: shell ran jobs on this machine. Here they run on the VMs of the inventory, by SSH, as their " +
			"user. This machine may be one: address: 127.0.0.1, user: gitlab-runner")
	case "custom", "parallels", "virtualbox", "instance", "docker+machine", "docker-autoscaler":
		c.note("executor: jobs run on the VMs of the inventory, which are not made here")
	case "docker", "docker-windows":
		c.note("executor: containers are made by the Docker daemons of the VMs of the inventory, which may have this " +
			"machine: address: 127.0.0.1")
	case "":
		c.note("executor: it is missing; jobs run on the VMs of the inventory")
	default:
		c.note("executor: it is not one of GitLab Runner 19.4; jobs run on the VMs of the inventory")
	}
	if c.values["instance"] != nil {
		c.note("executor: a manager has either the key instance or the key inventory; jobs run on the VMs of instance")
		return
	}
	c.set("inventory", inventory)
}

// sshInstance adds the VM of the executor ssh.
func (c *conversion) sshInstance(r *runner) {
	section, _ := r.table["ssh"].(map[string]any)
	at := map[string]string{}
	for _, key := range []string{"host", "port", "user"} {
		value := section[key]
		if value == nil {
			continue
		}
		text, is := value.(string)
		if !is {
			c.fail("ssh."+key, "a text", value)
			return
		}
		at[key] = text
	}
	address := at["host"]
	if at["port"] != "" {
		address = net.JoinHostPort(address, at["port"])
	}
	if at["user"] != "" {
		address = at["user"] + "@" + address
	}
	if at["host"] == "" {
		c.note("ssh.host: it is missing; write the VM into the inventory")
		c.set("inventory", inventory)
		return
	}
	if c.values["inventory"] != nil {
		c.note("ssh: add the VM " + address + " to the inventory. Jobs run on any VM of the manager")
		return
	}
	known, _ := c.values["instance"].([]string)
	delete(c.values, "instance")
	c.set("instance", append(known, r.name+"=ssh://"+address))
	if len(known) == 0 {
		return
	}
	c.keys = c.keys[:len(c.keys)-1] // it was there
	c.note("ssh: jobs run on any VM of the manager; for jobs that need this one, run another manager")
}
