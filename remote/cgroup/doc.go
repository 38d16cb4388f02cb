// Package cgroup limits the resources that the processes of a build use together, and counts them, by cgroups of
// version 2. It needs Linux 5.7, to start a process directly in a cgroup.
//
// [Make] makes a [Group] with limits. The init of the build is started in it, so all descendants of the init are in it
// too. The owner calls Remove. The group has two directories. The outer one has the limits that the kernel enforces.
// The inner one, "run", has the processes, and the same limits for programs that ask for theirs. A process that mounts
// the cgroups of a namespace of its own sees the inner one as the root, and cannot reach the outer one.
//
// A group needs a parent: for root a cgroup "stepmux" below the root of the cgroups, which has no limits of its own;
// for another user a cgroup that is delegated to it, in which its processes run already. For a build user, root makes
// the group in a cgroup "user-<id>" below its own, before it becomes that user. If there is no parent, the error says
// how to get one; there is never a group with fewer limits.
package cgroup
