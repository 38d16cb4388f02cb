package stockmanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

// Server is the GitLab server, as the scripts of a job see it.
type Server struct {
	URL   string
	Token string // of the job; it is also valid for the job's dependencies
}

// Archive is the place of a cache under one key.
type Archive struct {
	File string // on the VM
	URL  string // presigned, for GET and PUT. If empty, the cache is on the VM only.
}

// Cache is an entry of a job's cache.
type Cache struct {
	Paths []string
	// Archives begins with the archive of the cache's key. The others are those of its fallback keys, which are only
	// read.
	Archives []Archive
	PullOnly bool
}

// Artifact is an entry of a job's artifacts.
type Artifact struct {
	Name   string
	Paths  []string
	Except []string
	Format string // zip, gzip or raw. If empty, zip.
	Type   string // If empty, archive.
	Always bool   // upload also if the job has failed
}

// stage is a part of a job that a script carries out.
type stage struct {
	name   string
	script string
}

// before returns the stages before the job's steps.
func (m *Manager) before(job Job) []stage {
	var restore, download strings.Builder
	for _, c := range job.Caches {
		restore.WriteString(m.guard("Extracting cache", m.restore(c)))
	}
	for _, id := range job.Dependencies {
		download.WriteString(m.guard("Artifacts downloading", fmt.Sprintf("echo 'Downloading artifacts of job %s...'\n", id)+
			m.command("artifacts-downloader", "--url", job.Server.URL, "--token", job.Server.Token, "--id", id)+"\n"))
	}
	return []stage{{"restore_cache", restore.String()}, {"download_artifacts", download.String()}}
}

// after returns the stages after the job's steps, or after a stage that has failed.
func (m *Manager) after(job Job, succeeded bool) []stage {
	var archive, upload strings.Builder
	for _, c := range job.Caches {
		if succeeded && !c.PullOnly {
			archive.WriteString(m.guard("Creating cache", m.archive(c)))
		}
	}
	for _, a := range job.Artifacts {
		if succeeded || a.Always {
			upload.WriteString(m.guard("Uploading artifacts", m.upload(job, a)))
		}
	}
	name := "upload_artifacts_on_failure"
	if succeeded {
		name = "upload_artifacts_on_success"
	}
	return []stage{{"archive_cache", archive.String()}, {name, upload.String()}}
}

// restore tries the archives of a cache until one is there.
func (m *Manager) restore(c Cache) string {
	var b strings.Builder
	for _, from := range c.Archives {
		args := []string{"--file", from.File, "--timeout", "10"}
		if from.URL != "" {
			args = append(args, "--url", from.URL)
		}
		fmt.Fprintf(&b, "if %s; then\necho 'Successfully extracted cache'\nelse\necho 'Failed to extract cache'\n",
			m.command("cache-extractor", args...))
	}
	b.WriteString(strings.Repeat("fi\n", len(c.Archives)))
	return b.String()
}

func (m *Manager) archive(c Cache) string {
	to := c.Archives[0]
	args := append([]string{"--file", to.File, "--timeout", "10"}, each("--path", c.Paths)...)
	if to.URL != "" {
		args = append(args, "--url", to.URL, "--header", "Content-Type: application/octet-stream")
	}
	return fmt.Sprintf("if %s; then\necho 'Created cache'\nelse\necho 'Failed to create cache'\nfi\n",
		m.command("cache-archiver", args...))
}

func (m *Manager) upload(job Job, a Artifact) string {
	args := []string{
		"--url", job.Server.URL, "--token", job.Server.Token, "--id", job.ID,
		"--timeout", "1h0m0s", "--response-header-timeout", "10m0s",
	}
	args = append(args, each("--path", a.Paths)...)
	args = append(args, each("--exclude", a.Except)...)
	args = append(args, "--name", a.Name, "--expire-in", "1 week", "--artifact-format", cmp.Or(a.Format, "zip"),
		"--artifact-type", cmp.Or(a.Type, "archive"))
	return "echo 'Uploading artifacts...'\n" + m.command("artifacts-uploader", args...) + "\n"
}

func each(flag string, values []string) (args []string) {
	for _, value := range values {
		args = append(args, flag, value)
	}
	return args
}

// command returns a line that calls the runner's program.
func (m *Manager) command(name string, args ...string) string {
	words := slices.Concat([]string{cmp.Or(m.Runner, "gitlab-runner"), name}, args)
	for i := range words {
		words[i] = quote(words[i])
	}
	return strings.Join(words, " ")
}

// guard returns commands that are skipped with a warning if the VM has no runner's program.
func (m *Manager) guard(doing, commands string) string {
	return fmt.Sprintf("if %s >/dev/null 2>&1; then\n%selse\necho 'Missing gitlab-runner. %s is disabled.'\nfi\n",
		m.command("--version"), commands, doing)
}

// runStages runs the scripts of the stages that are not empty, until one fails.
func (m *Manager) runStages(
	ctx context.Context, client *ssh.Client, job Job, stages []stage, log io.Writer,
) (Result, error) {
	for _, s := range stages {
		if s.script == "" {
			continue
		}
		err := runSession(ctx, client, "bash", script(job, s), log, log)
		if exit := (*ssh.ExitError)(nil); errors.As(err, &exit) && exit.Signal() == "" {
			return Result{
				State: runnerproto.Status_failure, ExitCode: exit.ExitStatus(),
				Message: fmt.Sprintf("%s: exit status %d", s.name, exit.ExitStatus()),
			}, nil
		}
		if err != nil {
			return Result{}, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return Result{State: runnerproto.Status_success}, nil
}

// script returns the whole script of a stage. It exports the job's variables itself. The real manager's first stage
// would make the directory and get the project's sources; here there are no sources.
func script(job Job, s stage) string {
	var b strings.Builder
	b.WriteString("#!/usr/bin/env bash\n\ntrap 'exit 1' TERM\nset -o pipefail\nset -o errexit\nset +o noclobber\n(\n")
	for _, v := range job.Variables {
		if !v.GetFile() {
			fmt.Fprintf(&b, "export %s=%s\n", v.GetKey(), quote(v.GetValue()))
		}
	}
	fmt.Fprintf(&b, "mkdir -p %[1]s\ncd %[1]s\n%[2]s) </dev/null\nexit 0\n", quote(job.BuildDir), s.script)
	return b.String()
}

// runSession runs a command line in a session. When ctx ends, it closes the session.
func runSession(ctx context.Context, client *ssh.Client, line, stdin string, stdout, stderr io.Writer) error {
	session, err := client.NewSession()
	if err != nil {
		return err
	}
	end := func() { _ = session.Close() }
	defer end()
	defer context.AfterFunc(ctx, end)()
	session.Stdin, session.Stdout, session.Stderr = strings.NewReader(stdin), stdout, stderr
	if err := session.Run(line); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return nil
}
