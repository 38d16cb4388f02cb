package network

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/remote/archive"
	"github.com/stepmux/stepmux/remote/artifacts"
	"github.com/stepmux/stepmux/remote/commands"
	"github.com/stepmux/stepmux/remote/transfer"
)

func artifactsUploader(fl *pflag.FlagSet) commands.Runner {
	cfg := artifacts.UploadConfig{}
	var format string
	statement := artifacts.Statement{}
	h := newHelper(fl)
	h.job(&cfg.Job)
	h.selects("ARTIFACT_COMPRESSION_LEVEL")
	fl.VarP(lasting{&h.transfer.Timeout, time.Second}, "timeout", "", "longest time of one upload (default 1h)")
	fl.VarP(lasting{&h.transfer.HeaderTimeout, time.Second}, "response-header-timeout", "",
		"longest time that the server thinks after it has the archive (default 10m)")
	fl.StringVar(&cfg.Name, "name", "artifacts", "name of the archive, without .zip")
	fl.StringVar(&cfg.ExpireIn, "expire-in", "", "when the server may delete the artifacts, such as '1 week'")
	fl.StringVar(&format, "artifact-format", "", "zip, gzip or raw (default zip)")
	fl.StringVar(&cfg.Type, "artifact-type", "", "type of the artifacts, such as junit (default archive)")
	generate := fl.Bool("generate-artifacts-metadata", false,
		"add NAME-statement.json, a statement (in-toto, SLSA) about how the files were made; the flags below say it")
	fl.StringVar(&statement.RunnerID, "runner-id", "", "number of the runner")
	fl.StringVar(&statement.RunnerName, "runner-name", "", "name of the runner")
	fl.StringVar(&statement.Executor, "executor-name", "", "name of the executor")
	fl.StringVar(&statement.RepoURL, "repo-url", "", "URL of the project")
	fl.StringVar(&statement.RepoDigest, "repo-digest", "", "commit of the project")
	fl.StringVar(&statement.JobName, "job-name", "", "name of the job")
	fl.StringVar(&statement.StartedAt, "started-at", "", "when the job began, as 2006-01-02T15:04:05Z")
	fl.StringVar(&statement.EndedAt, "ended-at", "", "when the job ended")
	fl.StringArrayVar(&statement.Parameters, "metadata-parameter", nil, "name of a variable of the job; repeatable")
	fl.StringVar(&statement.Schema, "schema-version", "", "version of SLSA's provenance: v1 or v0.2 (default v1)")
	h.from("schema-version", "SLSA_PROVENANCE_SCHEMA_VERSION")
	h.transfers("upload", 5)
	return h.runner(func(ctx context.Context, level archive.Level) error {
		if h.transfer.Timeout == 0 {
			h.transfer.Timeout = time.Hour
		}
		if *generate {
			cfg.Statement = &statement
		}
		cfg.Files, cfg.Format, cfg.Level = h.selection, archive.Format(format), level
		cfg.Name, cfg.Found, cfg.Log = h.expand(cfg.Name), h.found, h.log
		return h.with(func(client *transfer.Client) error {
			err := artifacts.Upload(ctx, client, cfg)
			if errors.Is(err, artifacts.ErrNoFiles) {
				h.log.Error("No files to upload")
				return nil
			}
			return err
		})
	})
}

func artifactsDownloader(fl *pflag.FlagSet) commands.Runner {
	cfg := artifacts.DownloadConfig{}
	h := newHelper(fl)
	h.job(&cfg.Job)
	h.extracts(false)
	fl.BoolVar(&cfg.Direct, "direct-download", false, "let the server redirect to its object storage")
	h.from("direct-download", "FF_USE_DIRECT_DOWNLOAD")
	fl.StringVar(&cfg.StagingDir, "archiver-staging-dir", "", "directory for the archive (default TMPDIR)")
	h.from("archiver-staging-dir", "ARCHIVER_STAGING_DIR")
	h.transfers("download", 5)
	return h.runner(func(ctx context.Context, _ archive.Level) error {
		cfg.Dir, cfg.Bounds, cfg.Log = h.selection.Dir, h.bounds, h.log
		return h.with(func(client *transfer.Client) error { return artifacts.Download(ctx, client, cfg) })
	})
}

// job defines the flags that name a job and its server.
func (h *helper) job(job *artifacts.Job) {
	h.fl.StringVar(&job.Server, "url", "", "URL of the GitLab server")
	h.from("url", "CI_SERVER_URL")
	h.fl.StringVar(&job.Token, "token", "", "token of the job")
	h.from("token", "CI_JOB_TOKEN")
	h.fl.Int64Var(&job.ID, "id", 0, "number of the job")
	h.from("id", "CI_JOB_ID")
	h.fl.StringVar(&h.transfer.CertFile, "tls-cert-file", "", "file with the client's own certificate")
	h.from("tls-cert-file", "CI_SERVER_TLS_CERT_FILE")
	h.fl.StringVar(&h.transfer.KeyFile, "tls-key-file", "", "file with the key of --tls-cert-file")
	h.from("tls-key-file", "CI_SERVER_TLS_KEY_FILE")
}
