// Package gitlabci reads .gitlab-ci.yml as far as a step runner by itself can run it: one job, here and now.
//
// [Read] reads the file and those it includes, [File.Job] makes one of its jobs a Definition of
// remote/api/stepmuxv1 that the engine runs. In between lies what GitLab's server does with such a file, in
// its order: include, extends, !reference, default, variables. A job is made of
//
//   - setup, run and teardown, lists of steps, of which teardown also runs after a failure;
//   - before_script and script, together one script that a failing line ends, and after_script, which runs in
//     any case, by itself, and does not change how the job ends;
//   - the variable STEPS, if all that the script does is to call this program's ci command.
//
// What a server or a runner would have to do (artifacts, cache, image, rules, ...) is left out, and the job says
// so once. What would make it another job, as includes from elsewhere, is refused.
//
// Reading is strict and bounded as that of steps is (package steps), whose limits and whose error type apply to
// each file: cycles, bombs of aliases, references and includes end with an error that has its place. The package
// has included files read by its caller, and does no other I/O.
package gitlabci
