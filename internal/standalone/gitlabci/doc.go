// Package gitlabci reads a job of a .gitlab-ci.yml, as far as a step runner can run it without a server.
//
// [Read] reads the file and its includes into a [File]. [File.Job] compiles one job to a Definition of
// remote/api/stepmuxv1, which the engine runs. In between it does the work of GitLab's server, in the same order:
// include and the inputs of files, extends, !reference, default, variables, rules. A job consists of
//
//   - setup, run and teardown, lists of steps. teardown also runs after a failure;
//   - before_script and script, which become one script that ends with the first failing line, and after_script, which
//     always runs, by itself, and does not change the result of the job;
//   - the variable STEPS, if the script only calls this program's ci command.
//
// [File.Pipeline] returns the [Pipeline] of the file: the jobs that its rules put into it, their graph for package
// pipeline, their artifacts and child pipelines. [Pipeline.Job] compiles one of its jobs when that starts, with the
// variables that earlier jobs have reported.
//
// Keys for a server or a runner (artifacts, cache, image, rules, ...) are left out, and the job has one notice about
// them. Keys that would change the meaning of the job, such as includes from other places, are refused.
//
// Reading is as strict and bounded as that of steps. The limits and the error type of package lang apply to each file.
// Cycles and bombs of aliases, references and includes end with an error that has its place. The caller reads the
// included files; the package does no other I/O.
package gitlabci
