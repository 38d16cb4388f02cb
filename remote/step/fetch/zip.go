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

// archive is a zip archive that is asked for.
type archive struct {
	url      *url.URL
	location string // without what may be secret
	key      string // of it, and of all that may be secret in its address but a login
	login    *Login
	digest   string // that it must have, in hexadecimal; empty for any
}

// zip returns the step that ref says, of a zip archive.
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
		return "", fmt.Errorf("the digest is not one of sha256, which has %d hexadecimal digits", 2*sha256.Size)
	}
	return digits, nil
}

// localArchive returns what an archive of this machine holds.
func (f *fetcher) localArchive(ctx context.Context, path, want string) (*Component, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO must not hold us
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
	aside, err := f.cache.scratch()
	if err != nil {
		return nil, err
	}
	defer aside.remove()
	got, err := f.save(contextReader{ctx, file}, aside)
	if err != nil {
		return nil, err
	}
	source := Source{Kind: kindZip, Location: "file://" + path}
	c, err := f.extracted(ctx, got, want, source, keyOf(kindZip, "file"), false)
	if err != nil {
		return nil, err
	}
	c.Location = source.Location // an equal archive may have been elsewhere when it came into the cache
	return c, nil
}

// remoteArchive returns what the archive a holds.
func (f *fetcher) remoteArchive(ctx context.Context, a *archive) (*Component, error) {
	if a.digest == "" {
		return f.latestArchive(ctx, a)
	}
	key := keyOf(keyOf(kindZip, a.key), a.digest)
	if c, err := f.admitted(ctx, a, key); c != nil || err != nil {
		return c, err
	}
	// What is downloaded is locked by another name than what it holds.
	unlock, err := f.cache.lock(ctx, keyOf("download", a.key, a.digest), func() bool { return false })
	if err != nil {
		return nil, err
	}
	defer unlock()
	if c, err := f.admitted(ctx, a, key); c != nil || err != nil {
		return c, err
	}
	c, _, err := f.downloadArchive(ctx, a, "")
	return c, err
}

// admitted returns what the archive a holds if it is in the cache, as key, and whoever asks may have it.
func (f *fetcher) admitted(ctx context.Context, a *archive, key string) (*Component, error) {
	e, found := f.find(key)
	if !found {
		return nil, nil
	}
	if e.Private {
		if err := f.admit(ctx, a); err != nil {
			return nil, err
		}
	}
	return f.cached(ctx, key)
}

// latestArchive returns what the archive a, of which no digest is known, holds now.
func (f *fetcher) latestArchive(ctx context.Context, a *archive) (*Component, error) {
	var c *Component
	key := keyOf("archive", a.key)
	said, err := f.ask(ctx, key, func() (answer, error) {
		var last, now answer
		tag := ""
		if f.cache.read(answerDir, key, &last) {
			if _, found := f.find(keyOf(keyOf(kindZip, a.key), last.Is)); found {
				tag = last.Ref
			}
		}
		var err error
		c, now, err = f.downloadArchive(ctx, a, tag)
		if err == nil && now.Is == "" { // it is what it was
			now = last
		}
		return now, err
	})
	if c != nil || err != nil {
		return c, err
	}
	pinned := *a
	pinned.digest = said.Is
	return f.remoteArchive(ctx, &pinned)
}

// admit asks whether whoever asks may have the archive a.
func (f *fetcher) admit(ctx context.Context, a *archive) error {
	_, _, err := asking(a.login, func(login *Login) (struct{}, error) {
		resp, err := f.get(ctx, a.url, login, http.Header{"Range": {"bytes=0-0"}}, http.StatusOK, http.StatusPartialContent)
		if err == nil {
			finish(resp.Body)
			resp.Body.Close()
		}
		return struct{}{}, err
	})
	return err
}

// downloadArchive downloads a and returns what it holds, and what its server says of it. If tag is not empty, and still
// that of the archive, both are empty.
func (f *fetcher) downloadArchive(ctx context.Context, a *archive, tag string) (*Component, answer, error) {
	header := http.Header{}
	if tag != "" {
		header.Set("If-None-Match", tag)
	}
	resp, private, err := asking(a.login, func(login *Login) (*http.Response, error) {
		return f.get(ctx, a.url, login, header, http.StatusOK, http.StatusNotModified)
	})
	if err != nil {
		return nil, answer{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotModified {
		return nil, answer{}, nil
	}
	aside, err := f.cache.scratch()
	if err != nil {
		return nil, answer{}, err
	}
	defer aside.remove()
	got, err := f.save(resp.Body, aside)
	if err != nil {
		return nil, answer{}, fmt.Errorf("download: %w", err)
	}
	c, err := f.extracted(ctx, got, a.digest, Source{Kind: kindZip, Location: a.location}, keyOf(kindZip, a.key), private)
	return c, answer{Is: got.digest, Ref: resp.Header.Get("ETag"), Private: private}, err
}

// saved is an archive in a file of ours.
type saved struct {
	path   string
	size   int64
	digest string
}

// save writes what r has to a file.
func (f *fetcher) save(r io.Reader, aside *scratch) (saved, error) {
	s := saved{path: filepath.Join(aside.path, "archive")}
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

// extracted returns what the archive got holds, which must have the digest want if that is not empty.
func (f *fetcher) extracted(ctx context.Context, got saved, want string, source Source, where string, private bool) (*Component, error) {
	if want != "" && got.digest != want {
		return nil, fmt.Errorf("it has the digest sha256:%s, and not the one that was asked for; it was changed, or the digest is wrong", got.digest)
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
