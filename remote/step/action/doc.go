// Package action runs GitHub Actions, and the jobs of GitHub workflows, as steps of a job.
//
// [New] makes the [engine.Language] of a job. It reads action.yml or the workflow, evaluates the expressions (package
// expression), and runs composite, node and docker actions by the contract of GitHub's runner: the environment, a fresh
// set of command files for each step, workflow commands in the output, pre and post stages. docs/actions.md has a table
// of the parts that work, that differ and that are missing.
//
// Everything that touches the machine goes through an [engine.Call]: processes, fetching, masking and the events of a
// trace. So no goroutine outlives a call, and the engine ends processes that actions leave behind. Start reading at
// language.go, then session.go and list.go.
package action
