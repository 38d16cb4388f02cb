// Package giteadoor takes jobs from a Gitea or Forgejo server, runs each as a pipeline of one job of a manager, and
// reports its log, its steps and its result.
//
// A [Door] is a runner of one server: it reserves a slot, asks for a task, keeps the task, and only then gives it to
// the manager. It reports the log that the manager stores, without a copy of its own, and goes on where the server has
// stopped. The manager is behind the interface [Host], which it implements. docs/gitea.md describes the configuration.
package giteadoor
