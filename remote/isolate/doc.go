// Package isolate separates the processes of a build from the rest of the machine, by namespaces that the kernel gives
// to an ordinary user. It needs Linux.
//
// A server starts one init for its build with the namespaces of [Attributes], and maps its user with [MapUser].
// The init calls [Enter] before it runs a command. From then on its processes see only themselves, and these places are
// changed for them, in a mount namespace of their own:
//
//   - /proc shows only the build's processes.
//   - /tmp, /var/tmp, /dev/shm, the base of the sockets and /run/user/UID are the build's own and begin empty. The
//     build's directory stays visible, and so do the paths of [Room.Show].
//   - Files from which later builds start cannot be changed: see [Spec.Home].
//   - /sys/fs/cgroup is read-only. With version 2 alone, it shows only the build's own cgroup.
//   - With [Private], HOME is the build's own.
//
// docs/security.md says which attacks that stops, and which it does not.
package isolate
