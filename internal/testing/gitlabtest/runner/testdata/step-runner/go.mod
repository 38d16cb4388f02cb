// Stands for a module that cannot be had. See the package runner.
module gitlab.com/gitlab-org/step-runner

go 1.26.5
