package manager_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// sourcesOf serves a repository for jobs, and returns its server, and the commits: the last one, and the one before.
func sourcesOf(t *testing.T) (git *fetchtest.GitServer, sha, old string) {
	t.Helper()
	root := t.TempDir()
	repo := fetchtest.NewRepository(t, filepath.Join(root, "group", "project.git"))
	old = repo.Commit("main", fetchtest.Texts(map[string]string{"file": "old\n"}))
	files, modules := fetchtest.Texts(map[string]string{"file": "from git\n"}), ""
	for _, name := range []string{"one", "two"} {
		sub := fetchtest.NewRepository(t, filepath.Join(root, "group", name))
		at := sub.Commit("main", fetchtest.Texts(map[string]string{"s": "of " + name + "\n"}))
		modules += fmt.Sprintf("[submodule %q]\n\tpath = sub/%s\n\turl = ../%s\n", name, name, name)
		files["sub/"+name] = fetchtest.File{Submodule: at}
	}
	files[".gitmodules"] = fetchtest.File{Content: modules}
	sha = repo.Commit("main", files)
	repo.Git("tag", "v1", old)
	return fetchtest.ServeGit(t, root), sha, old
}

// containers lets the fleet run jobs in containers of a daemon.
func (f *fleet) containers(t *testing.T, d *dockertest.Daemon) {
	t.Helper()
	end, err := runnertest.Program()
	require.NoError(t, err)
	bin, err := program.LoadBinary(end)
	require.NoError(t, err)
	f.provide = func(cfg *instance.Config) {
		cfg.Docker.Socket, cfg.ContainerPrograms = d.Socket, []*program.Binary{bin}
	}
	change := f.change
	f.change = func(cfg *manager.Config) {
		if change != nil {
			change(cfg)
		}
		cfg.Place = func(own *place.Spec) (place.Description, error) {
			if own == nil {
				return nil, nil
			}
			box := &docker.Spec{Spec: *own}
			return box, box.Check()
		}
	}
}

// Each kind of job ends as the corpus says, on a VM with a real sshd. STEPMUX_GITLAB_JOBS=all runs all of them.
func TestKindsOfJobsOfGitLabEndAsTheirPageSays(t *testing.T) {
	t.Parallel()
	all := os.Getenv("STEPMUX_GITLAB_JOBS") == "all"
	git, sha, old := sourcesOf(t)
	fake, url := serveFake(t, gitlabtest.Config{})
	f := withPipelines(newFleetOn(t, sshtest.OpenSSH(t)))
	if all {
		f.containers(t, dockertest.Start(t))
	}
	kinds := gitlabtest.Kinds(t, map[string]string{"GIT": git.URL, "SHA": sha, "OLD": old, "URL": url})
	ran := map[string]int64{}
	add := func(later bool) { // before the door asks: it then takes them one after the other
		for _, kind := range kinds {
			if (kind.After != "") != later || !all && !kind.Quick {
				continue
			}
			if list, _ := kind.Job["dependencies"].([]any); later && len(list) > 0 {
				job, of := fake.Job(ran[kind.After]), list[0].(map[string]any)
				of["id"], of["token"] = job.ID, job.Token
			}
			kind.Job["variables"] = append(kind.Job["variables"].([]map[string]any),
				map[string]any{"key": "CI_SERVER_URL", "value": url})
			ran[kind.Name] = fake.Add(kind.Job)
		}
	}
	add(false)
	f.capacity = 4
	g := serveGitLab(t, f.start(t), fake, url)
	for _, id := range ran {
		g.ended(id)
	}
	add(true)
	for _, kind := range kinds {
		if id := ran[kind.Name]; id != 0 {
			t.Run(kind.Name, func(t *testing.T) { endsAs(t, kind, g.ended(id)) })
		}
	}
}

// endsAs requires that a job has ended as its kind says.
func endsAs(t *testing.T, kind gitlabtest.Kind, got gitlabtest.Job) {
	t.Helper()
	want := kind.Want
	if want.Refused != "" {
		require.Equal(t, "failed runner_system_failure", got.Status+" "+got.Reason)
		require.Contains(t, shown(t, got), want.Refused)
		return
	}
	if want.Status == "" {
		want.Status = gitlabtest.Success
	}
	require.Equal(t, fmt.Sprint(want.Status, " ", want.Reason, " ", want.ExitCode),
		fmt.Sprint(got.Status, " ", got.Reason, " ", got.ExitCode), "%s", got.Trace)
	for _, text := range want.Raw {
		require.Contains(t, string(got.Trace), text)
	}
	if want.Raw != nil {
		return
	}
	log, err := gitlabtest.ReadLog(got.Trace)
	require.NoError(t, err, "%s", got.Trace)
	for _, text := range want.Says {
		require.Contains(t, log.Text, text)
	}
	for _, text := range append(want.Never, got.Token) {
		require.NotContains(t, string(got.Trace), text)
	}
	if want.Sections != nil {
		own := slices.DeleteFunc(log.Sections, func(name string) bool {
			return name == "cleanup_file_variables" || name == "prepare_script"
		})
		require.Equal(t, strings.Join(want.Sections, " "), strings.Join(own, " "))
	}
	if want.Types != nil {
		require.ElementsMatch(t, want.Types, slices.Collect(maps.Keys(got.Artifacts)))
	}
	if want.Files == nil {
		return
	}
	packed := got.Artifacts["archive"]
	archive, err := zip.NewReader(bytes.NewReader(packed), int64(len(packed)))
	require.NoError(t, err, "%s", got.Trace)
	var files []string
	for _, file := range archive.File {
		if !strings.HasSuffix(file.Name, "/") {
			files = append(files, file.Name)
		}
	}
	require.ElementsMatch(t, want.Files, files)
}
