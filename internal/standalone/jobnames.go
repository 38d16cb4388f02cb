package standalone

import "github.com/stepmux/stepmux/remote/step/action"

// JobNames returns the names of the jobs in a .gitlab-ci.yml or a workflow, in the order of the file. The names of
// parallel builds come after their job's. It returns nil for a text that has no jobs or is not valid.
func JobNames(src Source) []string {
	switch src.Format { //nolint:exhaustive // other formats have no jobs
	case GitLabCI:
		file, err := openGitLabCI(src)
		if err != nil {
			return nil
		}
		var all []string
		for _, name := range file.Jobs() {
			all = append(all, name)
			if builds, err := file.Builds(name); err == nil && len(builds) > 1 {
				all = append(all, builds...)
			}
		}
		return all
	case GitHub:
		return action.WorkflowJobs(src.Text)
	default:
		return nil
	}
}
