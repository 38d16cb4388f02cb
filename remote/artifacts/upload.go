package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"path"
	"sync"

	"github.com/stepmux/stepmux/remote/archive"
	"github.com/stepmux/stepmux/remote/transfer"
)

// UploadConfig says which files to upload and how to name the archive.
type UploadConfig struct {
	Job   Job
	Files archive.Selection
	// Name is the name of the archive, without an extension. If empty, "default".
	Name string
	// ExpireIn and Type are for the server: "1 week", "junit". Optional.
	ExpireIn, Type string
	// Format is zip, gzip or raw. If empty, it is zip, and the request has no format.
	Format archive.Format
	Level  archive.Level
	// Statement is written to a file in the project and uploaded with the files. Optional; only with zip.
	Statement *Statement
	// Found is called with the paths of all files, before the upload. Optional.
	Found func(names []string)
	Log   transfer.Log
}

// ErrNoFiles says that there is nothing to upload.
var ErrNoFiles = errors.New("no files to upload")

// Upload sends the files to the server. It returns [ErrNoFiles] if the selection matches none.
func Upload(ctx context.Context, client *transfer.Client, cfg UploadConfig) error {
	address, err := cfg.Job.endpoint(cfg.query())
	if err != nil {
		return err
	}
	name := path.Base(cfg.Name)
	if cfg.Name == "" || name == "." || name == "/" || name == ".." {
		name = "default"
	}
	format := cfg.Format
	if format == "" {
		format = archive.Zip
	}
	extension, known := map[archive.Format]string{archive.Zip: ".zip", archive.Gzip: ".gz", archive.Raw: ""}[format]
	if !known {
		return fmt.Errorf("the artifact format %q is not one of zip, gzip and raw", format)
	}
	files, err := archive.Find(ctx, cfg.Files)
	if err != nil {
		return err
	}
	defer files.Close()
	if len(files.Names()) == 0 {
		return ErrNoFiles
	}
	if cfg.Statement != nil {
		if format != archive.Zip {
			return errors.New("--generate-artifacts-metadata is only for the artifact format zip")
		}
		if err := cfg.Statement.add(ctx, files, name, cfg.Job.ID); err != nil {
			return fmt.Errorf("write the statement about the artifacts: %w", err)
		}
	}
	if cfg.Found != nil {
		cfg.Found(files.Names())
	}
	as := cfg.Type
	if as == "" {
		as = "archive"
	}
	bodies := &bodies{
		boundary: multipart.NewWriter(io.Discard).Boundary(), filename: name + extension,
		write: func(w io.Writer) error { return files.Write(ctx, w, format, cfg.Level) },
	}
	defer bodies.writers.Wait()
	header := cfg.Job.header()
	header.Set("Content-Type", "multipart/form-data; boundary="+bodies.boundary)
	err = client.Retry(ctx, func(ctx context.Context, _ int) error {
		resp, err := client.Do(ctx, transfer.Request{
			Method: http.MethodPost, URL: address, Header: header, Body: bodies.open, Length: -1,
			OK: []int{http.StatusCreated}, Label: "Uploading artifacts",
		})
		if err != nil {
			return err
		}
		cfg.Log.Info(fmt.Sprintf("Uploading artifacts as %q to coordinator... %s", as, resp.Status))
		return resp.Body.Close()
	})
	return cfg.Job.explain(err, fmt.Sprintf("upload artifacts as %q", as),
		"the server has no such job, or its URL is wrong")
}

func (cfg UploadConfig) query() url.Values {
	q := url.Values{}
	for key, value := range map[string]string{
		"expire_in": cfg.ExpireIn, "artifact_format": string(cfg.Format), "artifact_type": cfg.Type,
	} {
		if value != "" {
			q.Set(key, value)
		}
	}
	return q
}

// bodies makes the bodies of an upload, one for each attempt and redirect. Each has a goroutine that writes it and ends
// when the body is closed.
type bodies struct {
	boundary string
	filename string
	write    func(io.Writer) error
	writers  sync.WaitGroup
}

func (b *bodies) open() (io.ReadCloser, error) {
	r, w := io.Pipe()
	b.writers.Go(func() {
		m := multipart.NewWriter(w)
		err := m.SetBoundary(b.boundary)
		var part io.Writer
		if err == nil {
			part, err = m.CreateFormFile("file", b.filename)
		}
		if err == nil {
			err = b.write(part)
		}
		if err == nil {
			err = m.Close()
		}
		w.CloseWithError(err) // nil means EOF
	})
	return r, nil
}
