package runnerconfig

import (
	"fmt"
	"strings"

	"github.com/stepmux/stepmux/internal/sortedkeys"
)

// dockerRules are those of containers by a Docker daemon.
var dockerRules = joined(map[string]rule{
	"runners.docker":       table(inContainers...),
	"runners.docker.image": text(func(c *conversion, t string) { c.current.image = t }),
	"runners.docker.host": text(func(c *conversion, t string) {
		if !strings.HasPrefix(t, "unix://") && !strings.HasPrefix(t, "tcp://") {
			c.note(fmt.Sprintf("docker.host: %s is not unix://PATH or tcp://HOST:PORT, as seen from the VMs", t))
			return
		}
		c.set("docker", t)
	}),
	"runners.docker.pull_policy": list(pulls),
	"runners.docker.volumes":     list(mounts),
	"runners.docker.tmpfs":       inMemory,
	"runners.docker.extra_hosts": setsList("add-host"),
	"runners.docker.memory":      text(memory),
	"runners.docker.cpus":        text(processors),
	"runners.docker.user":        sets("container-user"),
	"runners.docker.services":    services,
	"runners.docker.network_mode": text(func(c *conversion, t string) {
		switch {
		case t == "bridge" || t == "default":
		case strings.HasPrefix(t, "container:"):
			c.note("docker.network_mode: write none, host or a network of the daemon as network")
		default:
			c.set("network", t)
		}
	}),
	"runners.docker.wait_for_services_timeout": number(func(c *conversion, n int) {
		c.set("service-timeout", fmt.Sprintf("%ds", n))
	}),
	"runners.docker.container_labels": {do: func(c *conversion, key string, value any) {
		table, is := value.(map[string]any)
		if !is {
			c.fail(key, "a table of texts", value)
			return
		}
		c.set("label", pairs(table))
	}},
},
	notes("runners.docker.", noPrivilege, `privileged services_privileged cap_add devices device_cgroup_rules gpus
		service_gpus services_devices security_opt services_security_opt group_add allowed_privileged_images
		allowed_privileged_services pid_mode`),
	notes("runners.docker.", ofDaemon, `cap_drop cgroup_parent cpu_shares cpuset_cpus cpuset_mems dns dns_search
		enable_ipv6 hostname ipcmode log_options mac_address memory_reservation network_mtu oom_kill_disable
		oom_score_adjust runtime sysctls ulimit userns_mode`),
	notes("runners.docker.", noLists, "allowed_images allowed_services"),
	notes("runners.docker.", "limits and file systems are those of the job's own container alone", `services_tmpfs
		service_cgroup_parent service_cpu_shares service_cpus service_cpuset_cpus service_memory
		service_memory_reservation service_memory_swap service_slot_cgroup_template`),
	notes("runners.docker.", "the daemon is reached by the connection to the VM: use its unix socket",
		"tls_cert_path tls_verify"),
	notes("runners.docker.", "make the volume on the VMs, and name it by volume",
		"volume_driver volume_driver_ops volumes_from"),
	notes("runners.docker.", "there is no helper container", "helper_image helper_image_flavor"),
	notes("runners.docker.", "caches are kept by the manager", "cache_dir disable_cache"),
	notes("runners.docker.", "a container has no volumes of its own", "volume_keep"),
	notes("runners.docker.", "a job cannot choose the user; container-user does", "allowed_users"),
	notes("runners.docker.", "a job may choose always, if-not-present or never", "allowed_pull_policies"),
	notes("runners.docker.", "a job may name an entrypoint", "disable_entrypoint_overwrite"),
	notes("runners.docker.", "VMs with Windows are not supported", "isolation"),
	notes("runners.docker.", "use services", "links"),
	notes("runners.docker.", "build-memory is without swap", "memory_swap"),
	notes("runners.docker.", "mount it: tmpfs: [/dev/shm:size=BYTES]", "shm_size"),
	notes("runners.docker.", "the number of services is not bounded", "services_limit"),
)

const (
	ofDaemon    = "there is no key for it: set it in the Docker daemon of the VMs, or in the image"
	noPrivilege = "containers of jobs have Docker's usual rights: run such a job on the VM itself, without an image"
	noLists     = "there are no such lists: a job may use any image that the VMs can pull"
)

// pairs returns NAME=VALUE for each element of a table.
func pairs(table map[string]any) (all []string) {
	for _, key := range sortedkeys.Of(table) {
		all = append(all, fmt.Sprintf("%s=%v", key, table[key]))
	}
	return all
}

// kubernetesRules are those of pods.
var kubernetesRules = joined(map[string]rule{
	"runners.kubernetes":              table("kubernetes"),
	"runners.kubernetes.image":        text(func(c *conversion, t string) { c.current.image = t }),
	"runners.kubernetes.namespace":    sets("namespace"),
	"runners.kubernetes.context":      text(func(c *conversion, t string) { c.set("kubernetes", "="+t) }),
	"runners.kubernetes.pull_policy":  list(pulls),
	"runners.kubernetes.cpu_limit":    text(processors),
	"runners.kubernetes.memory_limit": text(memory),
	"runners.kubernetes.services":     services,
	"runners.kubernetes.poll_timeout": number(func(c *conversion, n int) {
		c.set("schedule-timeout", fmt.Sprintf("%ds", n))
	}),
},
	notes("runners.kubernetes.", "write it into the Pod of the file that pod-template names", `affinity
		allow_privilege_escalation automount_service_account_token build_container_security_context cap_add cap_drop
		container_lifecycle cpu_request dns_config dns_policy ephemeral_storage_limit ephemeral_storage_request
		host_aliases image_pull_secrets memory_request node_selector node_tolerations pod_annotations pod_cpu_limit
		pod_cpu_request pod_labels pod_memory_limit pod_memory_request pod_security_context pod_spec
		pod_termination_grace_period_seconds priority_class_name privileged runtime_class_name scheduler_name
		service_account use_service_account_image_pull_secrets volumes`),
	notes("runners.kubernetes.", "write it into the file that kubeconfig names",
		"bearer_token ca_file cert_file host key_file"),
	notes("runners.kubernetes.", "a job cannot change what its pod is like", `bearer_token_overwrite_allowed
		cpu_limit_overwrite_max_allowed cpu_request_overwrite_max_allowed ephemeral_storage_limit_overwrite_max_allowed
		ephemeral_storage_request_overwrite_max_allowed memory_limit_overwrite_max_allowed
		memory_request_overwrite_max_allowed namespace_overwrite_allowed node_selector_overwrite_allowed
		node_tolerations_overwrite_allowed pod_annotations_overwrite_allowed pod_cpu_limit_overwrite_max_allowed
		pod_cpu_request_overwrite_max_allowed pod_labels_overwrite_allowed pod_memory_limit_overwrite_max_allowed
		pod_memory_request_overwrite_max_allowed service_account_overwrite_allowed
		service_cpu_limit_overwrite_max_allowed service_cpu_request_overwrite_max_allowed
		service_ephemeral_storage_limit_overwrite_max_allowed service_ephemeral_storage_request_overwrite_max_allowed
		service_memory_limit_overwrite_max_allowed service_memory_request_overwrite_max_allowed`),
	notes("runners.kubernetes.", "limits are those of the job's own container alone", `service_container_security_context
		service_cpu_limit service_cpu_request service_ephemeral_storage_limit service_ephemeral_storage_request
		service_memory_limit service_memory_request`),
	notes("runners.kubernetes.", "there is no helper container", `helper_container_security_context helper_cpu_limit
		helper_cpu_limit_overwrite_max_allowed helper_cpu_request helper_cpu_request_overwrite_max_allowed
		helper_ephemeral_storage_limit helper_ephemeral_storage_limit_overwrite_max_allowed
		helper_ephemeral_storage_request helper_ephemeral_storage_request_overwrite_max_allowed helper_image
		helper_image_autoset_arch_and_os helper_image_flavor helper_memory_limit
		helper_memory_limit_overwrite_max_allowed helper_memory_request helper_memory_request_overwrite_max_allowed
		init_permissions_container_security_context logs_base_dir scripts_base_dir`),
	notes("runners.kubernetes.", noLists, "allowed_images allowed_services"),
	notes("runners.kubernetes.", "a job may choose always, if-not-present or never", "allowed_pull_policies"),
	notes("runners.kubernetes.", "a job cannot choose it", "allowed_groups allowed_users"),
	notes("runners.kubernetes.", "make it in the cluster yourself", "namespace_per_job pod_disruption_budget"),
	notes("runners.kubernetes.", "no pods are started ahead: schedule-timeout lets a cluster add nodes", "autoscaler"),
	notes("runners.kubernetes.", "jobs are not suspended", "suspend_pvc_size suspend_pvc_storage_class"),
	notes("runners.kubernetes.", needless, `cleanup_grace_period_seconds cleanup_resources_timeout poll_interval
		print_pod_warning_events resource_availability_check_max_attempts retry_backoff_max retry_limit retry_limits`),
)
