package jobcache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/remote/archive"
	"github.com/stepmux/stepmux/remote/transfer"
)

// RestoreConfig says where an archive is and where to unpack it.
type RestoreConfig struct {
	// Dir is the project's directory.
	Dir string
	// File is the archive on this machine. A download replaces it.
	File string
	// Sources are asked in order until one has the archive. Without sources only File is used.
	Sources []Source
	Bounds  archive.Bounds
	Log     transfer.Log
}

// Source is an archive on a server.
type Source struct {
	// URL is a presigned URL to GET it.
	URL string
	// HeadURL is a presigned URL for a HEAD request. It saves a download if the server has no archive, or no newer one.
	// Optional.
	HeadURL string
}

// ErrMiss says that there is no archive.
var ErrMiss = errors.New("there is no cache of this name")

var errNoFile = errors.New("the cache's archive is missing: give --file")

// Restore downloads the archive if a server has a newer one, and unpacks it.
func Restore(ctx context.Context, client *transfer.Client, cfg RestoreConfig) error {
	if cfg.File == "" {
		return errNoFile
	}
	use(cfg.File)
	if len(cfg.Sources) == 0 {
		cfg.Log.Info("No URL provided, cache will not be downloaded from shared cache server. Instead a local version of " +
			"cache will be extracted.")
	}
	missed := error(nil)
	for _, source := range cfg.Sources {
		missed = cfg.download(ctx, client, source)
		if missed == nil {
			break
		}
		if !isMiss(missed) {
			return fmt.Errorf("download the cache: %w", missed)
		}
	}
	if status, ok := errors.AsType[*transfer.StatusError](missed); ok && status.Code != http.StatusNotFound {
		return fmt.Errorf("%w: %w (some servers answer so for an object that is not there)", ErrMiss, missed)
	} else if missed != nil {
		return ErrMiss
	}
	file, err := open(cfg.File)
	if err != nil {
		return err
	}
	defer file.Close()
	files, err := archive.Extract(ctx, file, cfg.Dir, cfg.Bounds)
	if err != nil {
		return fmt.Errorf("unpack the cache: %w", err)
	}
	cfg.Log.Info(fmt.Sprintf("Unpacked %s.", plural.Count(files, "file")))
	return nil
}

// Open opens the archive of a cache on this machine, as a use of it. Without it the error is [ErrMiss]. The caller
// closes the file, which stays as it is when another job replaces the archive.
func Open(path string) (*os.File, error) {
	use(path)
	return open(path)
}

func open(path string) (*os.File, error) {
	file, err := boundedfile.Open(os.OpenFile, path) // another job may have put a pipe there
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrMiss
	}
	return file, err
}

// isMiss reports whether err means that the server has no such archive. Some object stores answer 403 to hide whether
// it exists.
func isMiss(err error) bool {
	status, ok := errors.AsType[*transfer.StatusError](err)
	return ok && (status.Code == http.StatusNotFound || status.Code == http.StatusForbidden)
}

// download replaces the file by the source's archive, if that is newer.
func (cfg RestoreConfig) download(ctx context.Context, client *transfer.Client, from Source) error {
	if from.HeadURL != "" {
		resp, err := client.Do(ctx, transfer.Request{
			Method: http.MethodHead, URL: from.HeadURL, OK: []int{http.StatusOK},
		})
		if isMiss(err) {
			return err
		}
		if err == nil { // on other errors the GET may still succeed
			resp.Body.Close()
			if cfg.upToDate(resp) {
				return nil
			}
		}
	}
	return client.Retry(ctx, func(ctx context.Context, _ int) error {
		resp, err := client.Do(ctx, transfer.Request{
			Method: http.MethodGet, URL: from.URL, OK: []int{http.StatusOK}, Label: "Downloading cache",
		})
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if cfg.upToDate(resp) {
			return nil
		}
		cfg.Log.Info(fmt.Sprintf("Downloading %s from %s", filepath.Base(cfg.File), transfer.Plain(from.URL)))
		modified := lastModified(resp)
		if modified.IsZero() {
			modified = time.Now()
		}
		err = archive.Replace(cfg.File, func(file *os.File) error {
			room, err := archive.Room(file)
			if err != nil {
				return transfer.Local(err)
			}
			if err := transfer.Save(file, resp, room); err != nil {
				return err
			}
			return transfer.Local(os.Chtimes(file.Name(), modified, modified))
		})
		if err != nil {
			return err
		}
		return transfer.Local(writeMetadata(cfg.File, metadataOf(resp.Header)))
	})
}

// upToDate reports whether the file is at least as new as the server's archive.
func (cfg RestoreConfig) upToDate(resp *http.Response) bool {
	modified := lastModified(resp)
	info, err := os.Stat(cfg.File)
	if err != nil || modified.IsZero() || modified.After(info.ModTime()) {
		return false
	}
	cfg.Log.Info(filepath.Base(cfg.File) + " is up to date")
	return true
}

// lastModified returns the time of the server's archive, or the zero time.
func lastModified(resp *http.Response) time.Time {
	at, err := http.ParseTime(resp.Header.Get("Last-Modified"))
	if err != nil {
		return time.Time{}
	}
	return at
}
