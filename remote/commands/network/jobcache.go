package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/remote/archive"
	"github.com/stepmux/stepmux/remote/commands"
	"github.com/stepmux/stepmux/remote/jobcache"
	"github.com/stepmux/stepmux/remote/transfer"
)

// noCloud is the reason for refusing flags for Go Cloud URLs.
const noCloud = "stepmux has no credentials of a cloud; use a cache with presigned URLs (s3 with access keys, or " +
	"gcs), or a local cache"

func cacheArchiver(fl *pflag.FlagSet) commands.Runner {
	cfg := jobcache.SaveConfig{Header: http.Header{}}
	var format, metadata string
	h := newHelper(fl)
	h.cached(&cfg.File, "upload")
	h.selects("CACHE_COMPRESSION_LEVEL")
	fl.StringVar(&cfg.Caches, "caches", "", "directory with caches, as PROJECT/CACHE: those that were neither saved nor "+
		"restored for 30 days are removed")
	fl.StringVar(&cfg.AlternateFile, "alternate-file", "", "older name of the archive; it is renamed to that of --file")
	fl.StringVar(&cfg.URL, "url", "", "presigned URL to upload the archive to (PUT)")
	fl.StringVar(&cfg.CheckURL, "check-url", "", "presigned URL to ask whether the server has the archive (HEAD); "+
		"if not, an archive that is up to date is uploaded too")
	fl.Var(headers{cfg.Header}, "header", "header of the upload; repeatable")
	fl.StringVar(&metadata, "metadata", "", `facts for metadata.json beside the archive, as {"cachekey":"main"}`)
	h.from("metadata", "CACHE_METADATA")
	fl.StringVar(&format, "compression-format", "", "zip, tarzstd or zipzstd (default zip)")
	h.from("compression-format", "CACHE_COMPRESSION_FORMAT")
	fl.Int64Var(&cfg.MaxUpload, "max-uploaded-archive-size", 0,
		"most bytes to upload; a larger archive stays on this machine")
	h.from("max-uploaded-archive-size", "CACHE_MAX_UPLOADED_ARCHIVE_SIZE")
	h.transfers("upload", 2)
	return h.runner(func(ctx context.Context, level archive.Level) error {
		if metadata != "" && json.Unmarshal([]byte(metadata), &cfg.Metadata) != nil {
			return fmt.Errorf("%w: --metadata is not an object of JSON with texts", commands.ErrUsage)
		}
		switch cfg.Format = archive.Format(strings.ToLower(format)); cfg.Format {
		case archive.Zip, archive.TarZstd, archive.ZipZstd:
		default:
			if format != "" {
				h.log.Warn(fmt.Sprintf("the compression format %q is not one of zip, tarzstd and zipzstd; zip is used", format))
			}
			cfg.Format = archive.Zip
		}
		cfg.Files, cfg.Level, cfg.Found, cfg.Log = h.selection, level, h.found, h.log
		return h.with(func(client *transfer.Client) error {
			err := jobcache.Save(ctx, client, cfg)
			if errors.Is(err, jobcache.ErrNoFiles) {
				h.log.Warn("No files to cache.")
				return nil
			}
			return err
		})
	})
}

func cacheExtractor(fl *pflag.FlagSet) commands.Runner {
	cfg := jobcache.RestoreConfig{}
	var primary, alternate jobcache.Source
	h := newHelper(fl)
	h.cached(&cfg.File, "download")
	h.extracts(true)
	fl.StringVar(&primary.URL, "url", "", "presigned URL to download the archive from (GET)")
	fl.StringVar(&primary.HeadURL, "head-url", "", "presigned URL to ask whether the server has a newer one (HEAD)")
	fl.StringVar(&alternate.URL, "alternate-url", "", "presigned URL to try if there is no archive at --url")
	fl.StringVar(&alternate.HeadURL, "alternate-head-url", "", "as --head-url, for --alternate-url")
	h.refuse(noCloud, "alternate-gocloud-url")
	h.transfers("download", 2)
	return h.runner(func(ctx context.Context, _ archive.Level) error {
		for _, source := range []jobcache.Source{primary, alternate} {
			if source.URL != "" {
				cfg.Sources = append(cfg.Sources, source)
			}
		}
		cfg.Dir, cfg.Bounds, cfg.Log = h.selection.Dir, h.bounds, h.log
		return h.with(func(client *transfer.Client) error { return jobcache.Restore(ctx, client, cfg) })
	})
}

// cached defines the flags of both commands for a cache.
func (h *helper) cached(file *string, doing string) {
	h.fl.StringVar(file, "file", "", "the archive on this machine (required)")
	h.transfer.Timeout = 10 * time.Minute
	h.fl.Var(lasting{&h.transfer.Timeout, time.Minute}, "timeout", "longest time of one "+doing+", in minutes")
	h.fl.StringVar(&h.envFile, "env-file", "", "file with variables, KEY=VALUE lines, that come before the environment")
	h.refuse(noCloud, "gocloud-url", "chunk-size", "concurrency", "transfer-buffer-size")
}
