package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/remote/archive"
	"github.com/stepmux/stepmux/remote/transfer"
)

// DownloadConfig says which artifacts to download and where to unpack them.
type DownloadConfig struct {
	Job Job
	// Dir is the project's directory.
	Dir string
	// Direct asks the server to redirect to its object storage. Only the first attempt asks for that.
	Direct bool
	// StagingDir is the directory for the archive until it is unpacked. If empty, the temporary directory.
	StagingDir string
	Bounds     archive.Bounds
	Log        transfer.Log
}

// Download gets the job's artifacts and unpacks them.
func Download(ctx context.Context, client *transfer.Client, cfg DownloadConfig) error {
	if _, err := cfg.Job.endpoint(nil); err != nil {
		return err
	}
	file, err := os.CreateTemp(cfg.StagingDir, "artifacts")
	if err != nil {
		return fmt.Errorf("make a file for the artifacts: %w", oserr.Hint(err, cfg.StagingDir))
	}
	defer file.Close()
	if err := os.Remove(file.Name()); err != nil { // so that no end of this program leaves it behind
		return err
	}
	doing := fmt.Sprintf("download artifacts of job %d", cfg.Job.ID)
	err = client.Retry(ctx, func(ctx context.Context, n int) error {
		return cfg.get(ctx, client, file, cfg.Direct && n == 0)
	})
	if err != nil {
		return cfg.Job.explain(err, doing, "the job has no artifacts there, or they have expired")
	}
	files, err := archive.Extract(ctx, file, cfg.Dir, cfg.Bounds)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	cfg.Log.Info(fmt.Sprintf("Downloading artifacts from coordinator... ok: %s of job %d",
		plural.Count(files, "file"), cfg.Job.ID))
	return nil
}

// get downloads the archive into file.
func (cfg DownloadConfig) get(ctx context.Context, client *transfer.Client, file *os.File, direct bool) error {
	if err := file.Truncate(0); err != nil {
		return transfer.Local(err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return transfer.Local(err)
	}
	query := url.Values{}
	if direct {
		query.Set("direct_download", "true")
	}
	address, err := cfg.Job.endpoint(query)
	if err != nil {
		return transfer.Local(err)
	}
	resp, err := client.Do(ctx, transfer.Request{
		Method: http.MethodGet, URL: address, Header: cfg.Job.header(), OK: []int{http.StatusOK},
		Label: "Downloading artifacts",
	})
	status, refused := errors.AsType[*transfer.StatusError](err)
	switch {
	case err != nil && direct && (!refused || status.Origin != transfer.Origin(address)):
		return errors.New("direct download: " + err.Error()) // of no type: it is retried, without the redirect
	case err != nil:
		return err
	}
	defer resp.Body.Close()
	room, err := archive.Room(file)
	if err != nil {
		return transfer.Local(err)
	}
	return transfer.Save(file, resp, room)
}
