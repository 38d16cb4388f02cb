// Stands for a module that cannot be had. See the package runner.
module gitlab.com/gitlab-org/labkit/v2

go 1.26.5
