package fetch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// archive is a requested zip archive.
type archive struct {
	path     string   // of a local archive
	url      *url.URL // of a remote archive
	location string   // its address without credentials and query
	key      string   // its address without a login; the query may be secret
	login    *Login
	digest   string // the expected digest, in hexadecimal, or empty
}

// archiveAt returns the archive at an address: a URL or an absolute path.
func archiveAt(address string) (*archive, error) {
	u, err := url.Parse(address)
	switch {
	case filepath.IsAbs(address):
		return &archive{path: address, location: "file://" + address, key: "file"}, nil
	case err != nil:
	case u.Scheme == "file" && (u.Host == "" || u.Host == "localhost") && filepath.IsAbs(u.Path):
		return archiveAt(u.Path)
	case isHTTP(u):
		plain := *u
		plain.User, plain.Fragment = nil, ""
		a := &archive{url: u, key: plain.String()}
		plain.RawQuery = ""
		a.location = plain.String()
		return a, nil
	}
	return nil, errors.New("the archive's address is invalid; write https://host/path or an absolute path")
}

// zip returns the step of a zip archive that ref names.
func (f *fetcher) zip(ctx context.Context, ref *pb.Reference) (*Component, error) {
	a, err := archiveAt(ref.GetUrl())
	if err != nil {
		return nil, err
	}
	if a.digest, err = parseDigest(ref.GetDigest()); err != nil {
		return nil, err
	}
	if a.url == nil {
		return f.localArchive(ctx, a)
	}
	a.login = f.with.For(a.url)
	return f.remoteArchive(ctx, a)
}

// parseDigest returns the hexadecimal part of a digest, which may be empty.
func parseDigest(digest string) (string, error) {
	digits, found := strings.CutPrefix(digest, digestPrefix)
	if digest != "" && (!found || len(digits) != 2*sha256.Size || !isHex(digits)) {
		return "", fmt.Errorf("the digest is not valid: write sha256: and %d hexadecimal digits", 2*sha256.Size)
	}
	return digits, nil
}

// localArchive returns the content of an archive on this machine.
func (f *fetcher) localArchive(ctx context.Context, a *archive) (*Component, error) {
	file := f.cfg.archive
	if file == nil {
		var err error
		if file, err = os.OpenFile(a.path, os.O_RDONLY|unix.O_NONBLOCK, 0); err != nil { // opening a FIFO must not block
			if oserr.Exhausted(err) {
				return nil, err
			}
			return nil, errors.New(err.Error()) // of no type, so that it is not taken for an error of the cache
		}
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", a.path)
	}
	c, _, err := f.extracted(ctx, a, contextReader{ctx, file}, false)
	if err != nil {
		return nil, err
	}
	c.Location = a.location // the cache may have it from an equal archive in another place
	return c, nil
}

// remoteArchive returns the content of the archive a.
func (f *fetcher) remoteArchive(ctx context.Context, a *archive) (*Component, error) {
	if a.digest == "" {
		return f.latestArchive(ctx, a)
	}
	// The download has a lock of its own, because obtain takes the lock of the content.
	return f.once(ctx, keyOf("download", a.key, a.digest), func() (*Component, error) {
		key := keyOf(keyOf(kindZip, a.key), a.digest)
		e, found := f.find(key)
		if !found {
			return nil, nil
		}
		if e.Private {
			if err := f.checkAccess(ctx, a); err != nil {
				return nil, err
			}
		}
		return f.cached(ctx, key)
	}, func() (*Component, error) {
		c, _, err := f.downloadArchive(ctx, a, "")
		return c, err
	})
}

// latestArchive returns the present content of the archive a, which was requested without a digest.
func (f *fetcher) latestArchive(ctx context.Context, a *archive) (*Component, error) {
	var c *Component
	key := keyOf("archive", a.key)
	latest, err := f.ask(ctx, key, func() (answer, error) {
		var last, now answer
		tag := ""
		if f.cache.read(answerDir, key, &last) {
			if _, found := f.find(keyOf(keyOf(kindZip, a.key), last.Is)); found {
				tag = last.Ref
			}
		}
		var err error
		c, now, err = f.downloadArchive(ctx, a, tag)
		if err == nil && now.Is == "" { // not modified
			now = last
		}
		return now, err
	})
	if c != nil || err != nil {
		return c, err
	}
	pinned := *a
	pinned.digest = latest.Is
	return f.remoteArchive(ctx, &pinned)
}

// checkAccess asks the server whether the caller may have the archive a.
func (f *fetcher) checkAccess(ctx context.Context, a *archive) error {
	resp, _, err := anonymousFirst(a.login, func(login *Login) (*http.Response, error) {
		return f.get(ctx, a.url, login, http.Header{"Range": {"bytes=0-0"}}, http.StatusOK, http.StatusPartialContent)
	})
	if err == nil {
		drain(resp.Body)
		resp.Body.Close()
	}
	return err
}

// downloadArchive downloads a and returns its content, and the server's answer about it. Both are empty if tag is still
// the ETag of the archive.
func (f *fetcher) downloadArchive(ctx context.Context, a *archive, tag string) (*Component, answer, error) {
	header, ok := http.Header{}, []int{http.StatusOK}
	if tag != "" {
		header.Set("If-None-Match", tag)
		ok = append(ok, http.StatusNotModified)
	}
	resp, private, err := anonymousFirst(a.login, func(login *Login) (*http.Response, error) {
		return f.get(ctx, a.url, login, header, ok...)
	})
	if err != nil {
		return nil, answer{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotModified {
		return nil, answer{}, nil
	}
	c, digest, err := f.extracted(ctx, a, resp.Body, private)
	return c, answer{Is: digest, Ref: resp.Header.Get("ETag")}, err
}

// saved is an archive in the scratch directory.
type saved struct {
	path   string
	size   int64
	digest string
}

// save writes the bytes of r to a file.
func (f *fetcher) save(r io.Reader, tmp *scratch) (saved, error) {
	s := saved{path: filepath.Join(tmp.path, "archive")}
	file, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return s, err
	}
	h := sha256.New()
	s.size, err = fill(file, io.TeeReader(r, h), f.limits.total)
	s.digest = fmt.Sprintf("%x", h.Sum(nil))
	return s, oserr.Bare(err)
}

// fill writes the bytes of r, at most limit, to file, and closes that.
func fill(file *os.File, r io.Reader, limit int64) (int64, error) {
	defer file.Close()
	n, err := io.Copy(file, io.LimitReader(r, limit+1))
	switch {
	case err != nil:
		return n, err
	case n > limit:
		return n, tooLarge(limit)
	}
	return n, file.Close()
}

// extracted returns the content of the archive a and its digest. r has the archive's bytes.
func (f *fetcher) extracted(ctx context.Context, a *archive, r io.Reader, private bool) (*Component, string, error) {
	tmp, err := f.cache.scratch()
	if err != nil {
		return nil, "", err
	}
	defer tmp.remove()
	got, err := f.save(r, tmp)
	switch {
	case err != nil && a.url != nil:
		return nil, "", fmt.Errorf("download: %w", err)
	case err != nil:
		return nil, "", err
	case a.digest != "" && got.digest != a.digest:
		return nil, "", fmt.Errorf("the digest is sha256:%s, and not the one that was asked for; the archive was changed, "+
			"or the digest is wrong", got.digest)
	}
	source := Source{Kind: kindZip, Location: a.location, Digest: digestPrefix + got.digest}
	key := keyOf(keyOf(kindZip, a.key), got.digest)
	c, err := f.obtain(ctx, key, private, func(w *treeWriter, _ *scratch) (Source, error) {
		return source, extractZip(ctx, got, w)
	})
	return c, got.digest, err
}

// contextReader is a reader that fails when ctx has ended.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}
