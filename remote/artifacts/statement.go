package artifacts

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/stepmux/stepmux/internal/buildinfo"
	"github.com/stepmux/stepmux/internal/filesum"
	"github.com/stepmux/stepmux/remote/archive"
)

// Statement has the facts for a statement about artifacts: in-toto with a provenance of SLSA. The manager provides
// them.
type Statement struct {
	RunnerID, RunnerName, Executor string
	RepoURL, RepoDigest            string // of the project: its URL, and the commit
	JobName                        string
	StartedAt, EndedAt             string // RFC 3339
	Parameters                     []string
	// Schema is the version of the provenance, v1 or v0.2. Any other is v1.
	Schema string
}

// buildType names the page that describes the statements of runners.
const buildType = "https://gitlab.com/gitlab-org/gitlab-runner/-/blob/HEAD/PROVENANCE.md"

// object is an object of JSON.
type object map[string]any

// add writes the statement to the file NAME-statement.json of the project and adds that file to the files.
func (s *Statement) add(ctx context.Context, files *archive.Files, name string, job int64) error {
	for _, at := range []string{s.StartedAt, s.EndedAt} {
		if _, err := time.Parse(time.RFC3339, at); err != nil {
			return fmt.Errorf("the time %q of --started-at or --ended-at is not one as 2006-01-02T15:04:05Z", at)
		}
	}
	own := name + "-statement.json"
	subjects := []object{}
	for _, file := range files.Names() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		info, err := files.Root().Lstat(file)
		if err != nil {
			files.Leave(file, err) // the archive has the files of the statement
			continue
		}
		if !info.Mode().IsRegular() || file == own { // an earlier statement is replaced below
			continue
		}
		sum, err := filesum.SHA256(files.Root().OpenFile, file)
		if err != nil {
			files.Leave(file, err)
			continue
		}
		subjects = append(subjects, object{"name": file, "digest": object{"sha256": sum}})
	}
	statement := object{"_type": "https://in-toto.io/Statement/v0.1", "subject": subjects}
	if s.Schema == "v0.2" {
		statement["predicateType"] = "https://slsa.dev/provenance/v0.2"
		statement["predicate"] = s.predicate02(strconv.FormatInt(job, 10))
	} else {
		statement["predicateType"] = "https://slsa.dev/provenance/v1"
		statement["predicate"] = s.predicate1(strconv.FormatInt(job, 10))
	}
	data, err := json.MarshalIndent(statement, "", " ")
	if err != nil {
		return err
	}
	if err := files.Root().WriteFile(own, data, 0o644); err != nil {
		return err
	}
	return files.Add(own)
}

// names returns the parameters with empty values.
func (s *Statement) names() object {
	parameters := object{}
	for _, name := range s.Parameters {
		parameters[name] = ""
	}
	return parameters
}

func (s *Statement) builder() string { return fmt.Sprintf("%s/-/runners/%s", s.RepoURL, s.RunnerID) }

func (s *Statement) digest() object { return object{"sha256": s.RepoDigest} }

func (s *Statement) predicate1(job string) object {
	parameters := s.names()
	parameters["entryPoint"], parameters["source"] = s.JobName, s.RepoURL
	return object{
		"buildDefinition": object{
			"buildType":          buildType,
			"externalParameters": parameters,
			"internalParameters": object{
				"name": s.RunnerName, "executor": s.Executor, "architecture": runtime.GOARCH, "job": job,
			},
			"resolvedDependencies": []object{{"uri": s.RepoURL, "digest": s.digest()}},
		},
		"runDetails": object{
			"builder":  object{"id": s.builder(), "version": object{"stepmux": buildinfo.Version()}},
			"metadata": object{"invocationID": job, "startedOn": s.StartedAt, "finishedOn": s.EndedAt},
		},
	}
}

func (s *Statement) predicate02(job string) object {
	return object{
		"builder":   object{"id": s.builder()},
		"buildType": buildType,
		"invocation": object{
			"configSource": object{"uri": s.RepoURL, "digest": s.digest(), "entryPoint": s.JobName},
			"parameters":   s.names(),
			"environment": object{
				"name": s.RunnerName, "executor": s.Executor, "architecture": runtime.GOARCH, "job": object{"id": job},
			},
		},
		"metadata": object{
			"buildStartedOn": s.StartedAt, "buildFinishedOn": s.EndedAt, "reproducible": false,
			"completeness": object{"parameters": true, "environment": true, "materials": false},
		},
	}
}
