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

// SaveConfig says which files to keep and where.
type SaveConfig struct {
	Files archive.Selection
	// File is the archive on this machine. If only AlternateFile exists, it is renamed to File first.
	File, AlternateFile string
	// Caches is a directory in which each cache has a directory of its own, as PROJECT/CACHE. Save removes those that
	// were neither saved nor restored for 30 days, unless Caches is a symbolic link. Optional.
	Caches string
	// URL is a presigned URL to PUT the archive to. If empty, the archive stays on this machine.
	URL string
	// CheckURL is a presigned URL for a HEAD request. It shows whether the server also has an archive that is up to
	// date here. Optional.
	CheckURL string
	// Header is sent with the PUT.
	Header http.Header
	// Metadata is kept beside the archive in metadata.json.
	Metadata map[string]string
	Format   archive.Format
	Level    archive.Level
	// MaxUpload bounds an archive that is uploaded, in bytes; a larger one stays on this machine. If zero, there is no
	// bound.
	MaxUpload int64
	// Found is called with the paths of all files, before they are packed. Optional.
	Found func(names []string)
	Log   transfer.Log
}

// ErrNoFiles says that there is nothing to keep.
var ErrNoFiles = errors.New("no files to cache")

// Save packs the files and uploads the archive. If the archive is newer than all files, it is not packed again. The
// error is [ErrNoFiles] if no file matches the selection.
func Save(ctx context.Context, client *transfer.Client, cfg SaveConfig) error {
	if cfg.File == "" {
		return errNoFile
	}
	use(cfg.File)
	if cfg.Caches != "" {
		Sweep(ctx, cfg.Caches)
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
	err = archive.Replace(cfg.File, func(file *os.File) error {
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

// Keep replaces the archive of a cache on this machine by a whole file of the same file system, which it renames.
func Keep(file *os.File, archive string) (err error) {
	for range 2 { // a Sweep may remove the directory of an old one in between
		if err = os.MkdirAll(filepath.Dir(archive), 0o700); err != nil {
			return err
		}
		use(archive)
		if err = os.Rename(file.Name(), archive); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// takeAlternate renames AlternateFile to File if only AlternateFile exists.
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

// onServer reports whether the server has the archive. It returns false if the server cannot be asked.
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
	file, err := os.Open(cfg.File) // once: another job may replace it between two attempts
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
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
			Body:  func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(file, 0, info.Size())), nil },
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
