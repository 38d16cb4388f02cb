package jobcache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"github.com/stepmux/stepmux/remote/archive"
	"github.com/stepmux/stepmux/remote/transfer"
)

// SaveConfig is what to keep and where.
type SaveConfig struct {
	Files archive.Selection
	// File is the archive on this machine. If AlternateFile is there and File is not, it is renamed to File first.
	File, AlternateFile string
	// URL is a presigned URL to PUT the archive to. If empty, the archive stays on this machine.
	URL string
	// CheckURL is a presigned URL for a HEAD request. It tells whether an archive that is up to date here is on the
	// server too. Optional.
	CheckURL string
	// Header goes with the PUT.
	Header http.Header
	// Metadata is kept beside the archive in metadata.json.
	Metadata map[string]string
	Format   archive.Format
	Level    archive.Level
	// MaxUpload is the largest archive to upload, in bytes; a larger one stays on this machine. If zero, any.
	MaxUpload int64
	// Found is called with the paths of all files, before they are packed. Optional.
	Found func(names []string)
	Log   transfer.Log
}

// ErrNoFiles is returned if there is nothing to keep.
var ErrNoFiles = errors.New("no files to cache")

// Save packs the files, unless the archive is newer than all of them, and uploads the archive. It returns [ErrNoFiles]
// if the selection matches none.
func Save(ctx context.Context, client *transfer.Client, cfg SaveConfig) error {
	if cfg.File == "" {
		return errNoFile
	}
	if err := cfg.takeAlternate(); err != nil {
		return err
	}
	files, err := archive.Find(ctx, cfg.Files)
	if err != nil {
		return err
	}
	defer files.Close()
	if len(files.Names()) == 0 {
		return ErrNoFiles
	}
	if cfg.Found != nil {
		cfg.Found(files.Names())
	}
	if old, err := os.Stat(cfg.File); err == nil && !files.Newest().After(old.ModTime()) {
		if cfg.CheckURL == "" || cfg.URL == "" || cfg.onServer(ctx, client) {
			cfg.Log.Info("Archive is up to date!")
			return nil
		}
		cfg.Log.Info("The archive is up to date, but not on the server.")
		return cfg.upload(ctx, client)
	}
	err = archive.Replace(cfg.File, "archive_*", func(file *os.File) error {
		return files.Write(ctx, file, cfg.Format, cfg.Level)
	})
	if err == nil {
		err = writeMetadata(cfg.File, cfg.Metadata)
	}
	if err != nil {
		return fmt.Errorf("write the cache: %w", err)
	}
	return cfg.upload(ctx, client)
}

// takeAlternate renames the archive that has its older name.
func (cfg SaveConfig) takeAlternate() error {
	if cfg.AlternateFile == "" || cfg.AlternateFile == cfg.File {
		return nil
	}
	if _, err := os.Stat(cfg.File); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(cfg.File), 0o700); err != nil {
		return fmt.Errorf("make the cache's directory: %w", err)
	}
	err := os.Rename(cfg.AlternateFile, cfg.File)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		cfg.Log.Warn(fmt.Sprintf("The archive keeps its older name: %v", err))
	}
	return nil
}

// onServer reports whether the server has the archive. If it cannot be asked, it has not.
func (cfg SaveConfig) onServer(ctx context.Context, client *transfer.Client) bool {
	resp, err := client.Do(ctx, transfer.Request{Method: http.MethodHead, URL: cfg.CheckURL, OK: []int{http.StatusOK}})
	if err != nil {
		return false
	}
	resp.Body.Close()
	return true
}

// upload sends the archive to the server.
func (cfg SaveConfig) upload(ctx context.Context, client *transfer.Client) error {
	if cfg.URL == "" {
		cfg.Log.Info("No URL provided, cache will not be uploaded to shared cache server. Cache will be stored only locally.")
		return nil
	}
	info, err := os.Stat(cfg.File)
	if err != nil {
		return err
	}
	if cfg.MaxUpload > 0 && info.Size() > cfg.MaxUpload {
		cfg.Log.Warn(fmt.Sprintf("Cache archive size (%d) is too big (Limit is set to %d). Cache will be stored only "+
			"locally.", info.Size(), cfg.MaxUpload))
		return nil
	}
	header := http.Header{"Content-Type": {"application/octet-stream"}}
	for key, values := range cfg.Header {
		header[key] = values
	}
	header.Set("Last-Modified", info.ModTime().UTC().Format(http.TimeFormat))
	cfg.Log.Info(fmt.Sprintf("Uploading %s to %s", filepath.Base(cfg.File), transfer.Plain(cfg.URL)))
	err = client.Retry(ctx, func(ctx context.Context, _ int) error {
		resp, err := client.Do(ctx, transfer.Request{
			Method: http.MethodPut, URL: cfg.URL, Header: header, Length: info.Size(),
			Body:  func() (io.ReadCloser, error) { return os.Open(cfg.File) },
			OK:    []int{http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent},
			Label: "Uploading cache",
		})
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
	if err != nil {
		return fmt.Errorf("upload the cache: %w", err)
	}
	return nil
}
