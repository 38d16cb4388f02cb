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
	url      *url.URL
	location string // its address without credentials and query
	key      string // its address without a login; the query may be secret
	login    *Login
	digest   string // the digest it must have, in hexadecimal; empty for any
}

// zip returns the step of a zip archive that ref names.
func (f *fetcher) zip(ctx context.Context, ref *pb.Reference) (*Component, error) {
	digest, err := parseDigest(ref.GetDigest())
	if err != nil {
		return nil, err
	}
	var c *Component
	u, _ := url.Parse(ref.GetUrl())
	switch {
	case filepath.IsAbs(ref.GetUrl()):
		c, err = f.localArchive(ctx, ref.GetUrl(), digest)
	case u != nil && u.Scheme == "file" && (u.Host == "" || u.Host == "localhost") && filepath.IsAbs(u.Path):
		c, err = f.localArchive(ctx, u.Path, digest)
	case u != nil && isHTTP(u):
		a := &archive{url: u, login: f.with.forURL(u), digest: digest}
		plain := *u
		plain.User, plain.Fragment = nil, ""
		a.key = plain.String()
		plain.RawQuery = ""
		a.location = plain.String()
		c, err = f.remoteArchive(ctx, a)
	default:
		return nil, errors.New("the archive's address is invalid; write https://host/path or an absolute path")
	}
	if err != nil {
		return nil, err
	}
	c.Version = ref.GetDigest()
	c.place(ref.GetPath(), ref.GetFile(), "")
	return c, nil
}

// parseDigest returns the hexadecimal part of a digest, which may be empty.
func parseDigest(digest string) (string, error) {
	if digest == "" {
		return "", nil
	}
	digits, found := strings.CutPrefix(digest, digestPrefix)
	if !found || len(digits) != 2*sha256.Size || !isHex(digits) {
		return "", fmt.Errorf("the digest is not valid: write sha256: and %d hexadecimal digits", 2*sha256.Size)
	}
	return digits, nil
}

// localArchive returns the content of an archive on this machine.
func (f *fetcher) localArchive(ctx context.Context, path, want string) (*Component, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO must not block
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	tmp, err := f.cache.scratch()
	if err != nil {
		return nil, err
	}
	defer tmp.remove()
	got, err := f.save(contextReader{ctx, file}, tmp)
	if err != nil {
		return nil, err
	}
	source := Source{Kind: kindZip, Location: "file://" + path}
	c, err := f.extracted(ctx, got, want, source, keyOf(kindZip, "file"), false)
	if err != nil {
		return nil, err
	}
	c.Location = source.Location // the cache may have it from an equal archive elsewhere
	return c, nil
}

// remoteArchive returns the content of the archive a.
func (f *fetcher) remoteArchive(ctx context.Context, a *archive) (*Component, error) {
	if a.digest == "" {
		return f.latestArchive(ctx, a)
	}
	key := keyOf(keyOf(kindZip, a.key), a.digest)
	if c, err := f.cachedArchive(ctx, a, key); c != nil || err != nil {
		return c, err
	}
	// The download has a lock of its own: obtain takes that of the content.
	unlock, err := f.cache.lock(ctx, keyOf("download", a.key, a.digest), func() bool { return false })
	if err != nil {
		return nil, err
	}
	defer unlock()
	if c, err := f.cachedArchive(ctx, a, key); c != nil || err != nil {
		return c, err
	}
	c, _, err := f.downloadArchive(ctx, a, "")
	return c, err
}

// cachedArchive returns the content of the archive a if the cache has it, as key, and the caller may have it.
func (f *fetcher) cachedArchive(ctx context.Context, a *archive, key string) (*Component, error) {
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
}

// latestArchive returns the present content of the archive a, whose digest is not known.
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
	_, _, err := anonymousFirst(a.login, func(login *Login) (struct{}, error) {
		resp, err := f.get(ctx, a.url, login, http.Header{"Range": {"bytes=0-0"}}, http.StatusOK, http.StatusPartialContent)
		if err == nil {
			drain(resp.Body)
			resp.Body.Close()
		}
		return struct{}{}, err
	})
	return err
}

// downloadArchive downloads a and returns its content, and the server's answer about it. Both are empty if tag is not
// empty and still the archive's.
func (f *fetcher) downloadArchive(ctx context.Context, a *archive, tag string) (*Component, answer, error) {
	header := http.Header{}
	if tag != "" {
		header.Set("If-None-Match", tag)
	}
	resp, private, err := anonymousFirst(a.login, func(login *Login) (*http.Response, error) {
		return f.get(ctx, a.url, login, header, http.StatusOK, http.StatusNotModified)
	})
	if err != nil {
		return nil, answer{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotModified {
		return nil, answer{}, nil
	}
	tmp, err := f.cache.scratch()
	if err != nil {
		return nil, answer{}, err
	}
	defer tmp.remove()
	got, err := f.save(resp.Body, tmp)
	if err != nil {
		return nil, answer{}, fmt.Errorf("download: %w", err)
	}
	c, err := f.extracted(ctx, got, a.digest, Source{Kind: kindZip, Location: a.location}, keyOf(kindZip, a.key), private)
	return c, answer{Is: got.digest, Ref: resp.Header.Get("ETag"), Private: private}, err
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
	defer file.Close()
	h := sha256.New()
	s.size, err = io.Copy(io.MultiWriter(file, h), io.LimitReader(r, f.limits.total+1))
	switch {
	case err != nil:
		return s, oserr.Bare(err)
	case s.size > f.limits.total:
		return s, tooLarge(f.limits.total)
	}
	s.digest = fmt.Sprintf("%x", h.Sum(nil))
	return s, file.Close()
}

// extracted returns the content of the archive got. If want is not empty it is the digest that the archive must have.
func (f *fetcher) extracted(
	ctx context.Context, got saved, want string, source Source, where string, private bool,
) (*Component, error) {
	if want != "" && got.digest != want {
		return nil, fmt.Errorf("its digest is sha256:%s, and not the one that was asked for; the archive was changed, or "+
			"the digest is wrong", got.digest)
	}
	source.Digest = digestPrefix + got.digest
	return f.obtain(ctx, keyOf(where, got.digest), private, func(w *treeWriter, _ *scratch) (Source, error) {
		return source, extractZip(ctx, got, w)
	})
}

// contextReader ends with ctx.
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
