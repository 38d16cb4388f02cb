// Package gitlabpipeline reads the pipeline of a .gitlab-ci.yml for package whole, which runs pipelines of any
// language. [Read] returns it. Package gitlabci knows the language; this one gives its parts the form of package whole.
package gitlabpipeline
