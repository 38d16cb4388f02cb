// Package managed lets a manager run whole pipelines: it is manager.Pipelines.
//
// A submitter makes the source of a request by [Source]: the text of a pipeline, and the answers for which reading it
// asks. The manager reads the same pipeline from that, as often as it likes, and carries it out with package whole.
// Each attempt of a job is a build of the manager's queue. The package has no goroutines and keeps nothing: the
// manager's PipelineRun does.
package managed
