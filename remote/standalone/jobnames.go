package standalone

import "github.com/stepmux/stepmux/remote/step/action"

// JobNames returns the names of the jobs in a .gitlab-ci.yml or a workflow, in the order of the file. It returns nil
// for texts without jobs and for those that are not valid.
func JobNames(src Source) []string {
	switch src.Format { //nolint:exhaustive // the others have no jobs
	case GitLabCI:
		file, err := openGitLabCI(src)
		if err != nil {
			return nil
		}
		return file.Jobs()
	case GitHub:
		names, _ := action.WorkflowJobs(src.Name, src.Text) // nil then
		return names
	default:
		return nil
	}
}
