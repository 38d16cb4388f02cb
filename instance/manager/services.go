package manager

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/connector"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/natscall"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/actionservices"
	"github.com/stepmux/stepmux/internal/contents"
)

const (
	// uploadsDir is the directory for files of actions that are not complete, in the state directory.
	uploadsDir = "uploads"
	// diskReserve is the room on the disk that uploads leave to the manager's state, in bytes.
	diskReserve = 64 << 20
	// maxScopes bounds the scopes of a build's caches, and maxActionCaches the caches of a project.
	maxScopes, maxActionCaches = 8, 1000
)

// openServices opens the services for the actions of workflows. They have no goroutines: each build has its door.
func (m *Manager) openServices() error {
	if err := os.MkdirAll(filepath.Join(m.cfg.Dir, uploadsDir), 0o700); err != nil {
		return err
	}
	m.services = actionservices.New(actionservices.Config{
		Store: actionFiles{m}, Secret: []byte(m.store.Secret("signatures of services")),
		MaxArtifacts: min(actionservices.DefaultArtifacts, m.cfg.FileBytes/2), MaxUploads: m.cfg.FileBytes,
		Resume: true, Reserve: diskReserve,
	})
	m.services.Sweep()
	return nil
}

// checkServices returns an error unless a request can have the services that it asks for.
func checkServices(asked *pb.BuildServices) error {
	if len(asked.GetScopes()) > maxScopes {
		return status.Errorf(codes.InvalidArgument, "there are more than %d scopes of caches", maxScopes)
	}
	return nil
}

// servicesOf returns the services for the actions of a build, as for connector.Job, or nil. Its token is that of the
// attempt, also with the next manager, and opens nothing when the attempt has ended. The jobs of a pipeline see each
// other's artifacts.
func (m *Manager) servicesOf(b *build) func() (*connector.Services, func(), error) {
	asked, p := b.asked.GetServices(), b.asked.GetPipeline()
	if asked == nil {
		return nil
	}
	return func() (*connector.Services, func(), error) {
		token, ended := m.services.Begin(actionservices.Job{
			Run: cmp.Or(p.GetId(), b.ID), Name: cmp.Or(p.GetJob(), "job"), Build: b.attemptID(),
			Attempt: int(asked.GetAttempt()), Project: asked.GetProject(), Scopes: asked.GetScopes(),
			Key: m.store.Secret("services of " + b.attemptID()), Began: b.kept().Started, Token: asked.GetToken(),
		})
		door := m.services.Door(m.cfg.Logger)
		if by := asked.GetRelay(); by != "" {
			if err := door.PassOn(asked.GetServer(), by); err != nil {
				ended()
				return nil, nil, err
			}
		}
		services := &connector.Services{
			Token: token, Server: asked.GetServer(), Relayed: asked.GetRelay() != "", Take: door.Take,
		}
		return services, func() {
			door.Close()
			if b.isLeft() || m.life.Err() != nil {
				m.services.Leave(token)
			} else {
				ended()
			}
		}, nil
	}
}

// actionFiles keeps the files of actions as the manager keeps projects: by their content, in the state directory or in
// the cluster. Their descriptions are in the state, sealed. It implements actionservices.Store.
type actionFiles struct{ m *Manager }

// Scratch implements actionservices.Store, as do the following.
func (f actionFiles) Scratch(bool) (string, error) {
	return filepath.Join(f.m.cfg.Dir, uploadsDir), nil
}

// persist calls do with a context that ends with the manager, too.
func (f actionFiles) persist(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(f.m.life, func() { cancel(context.Cause(f.m.life)) })() //nolint:contextcheck // see above
	return f.m.store.Persist(ctx, do)
}

// contentOf returns an archive as a Content, and archiveOf is the reverse.
func contentOf(f *state.File) string { return f.Digest + "-" + strconv.FormatInt(f.Size, 10) }

func archiveOf(content string) (digest string, size int64, err error) {
	digest, text, _ := strings.Cut(content, "-")
	if err = contents.CheckDigest(digest); err == nil {
		size, err = strconv.ParseInt(text, 10, 64)
	}
	if err != nil {
		return "", 0, fs.ErrNotExist
	}
	return digest, size, nil
}

// describe reads the descriptions of files.
func describe[T any](files []*state.File, add func(to *T, f *state.File)) (all []T) {
	for _, file := range files {
		one := new(T)
		if json.Unmarshal(file.About, one) == nil { // it was sealed
			add(one, file)
			all = append(all, *one)
		}
	}
	return all
}

func (f actionFiles) list(ctx context.Context, in string) (all []*state.File, err error) {
	err = f.persist(ctx, func(ctx context.Context) (err error) {
		all, err = f.m.store.ListFiles(ctx, in)
		return err
	})
	return all, err
}

// Artifacts lists the artifacts of a pipeline.
func (f actionFiles) Artifacts(ctx context.Context, run string) ([]actionservices.Artifact, error) {
	all, err := f.list(ctx, state.ArtifactsOf(run))
	return describe(all, func(a *actionservices.Artifact, file *state.File) { a.Content = contentOf(file) }), err
}

// KeepArtifact keeps the file, and then names it.
func (f actionFiles) KeepArtifact(
	ctx context.Context, run string, a actionservices.Artifact, file string, replaces func(*actionservices.Artifact) bool,
) error {
	kept, err := f.keep(ctx, file, natscall.Encode(a))
	if err != nil {
		return err
	}
	return f.name(ctx, state.ArtifactsOf(run), a.Name, kept, func(_ context.Context, before *state.File) error {
		var was actionservices.Artifact
		switch err := json.Unmarshal(before.About, &was); {
		case err != nil:
			return err
		case was.ID == a.ID: // it was named, and the answer was lost
			return errNamed
		case !replaces(&was):
			return fs.ErrExist
		}
		return nil
	})
}

// keep keeps a file by its content, and removes it where it is.
func (f actionFiles) keep(ctx context.Context, path string, about json.RawMessage) (*state.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, file)
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, err
	}
	kept := &state.File{Digest: hex.EncodeToString(sum.Sum(nil)), Size: size, About: about}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(f.m.life, func() { cancel(context.Cause(f.m.life)) })() //nolint:contextcheck // as in persist
	err = f.m.keepArchive(ctx, kept.Digest, kept.Size, file)
	if status.Code(err) == codes.ResourceExhausted {
		err = actionservices.ErrNoRoom
	}
	if err != nil {
		return nil, err
	}
	return kept, os.Remove(path)
}

// errNamed says that a file has its name already.
var errNamed = errors.New("the file has its name already")

// name names a file that is kept. If there is one of that name, replace decides: it returns nil if that goes.
func (f actionFiles) name(
	ctx context.Context, in string, name string, kept *state.File,
	replace func(context.Context, *state.File) error,
) error {
	for {
		err := f.persist(ctx, func(ctx context.Context) error {
			before, err := f.m.store.FindFile(ctx, in, name)
			if err == nil && before != nil {
				err = replace(ctx, before)
			}
			if err == nil {
				err = f.m.store.PutFile(ctx, in, name, kept, before)
			}
			return err
		})
		switch {
		case errors.Is(err, errNamed):
			return nil
		case !errors.Is(err, state.ErrTaken):
			return err
		}
	}
}

// RemoveArtifact removes the name. The file goes when there is need of room.
func (f actionFiles) RemoveArtifact(ctx context.Context, run, name string) error {
	return f.persist(ctx, func(ctx context.Context) error {
		return f.m.store.RemoveFile(ctx, state.ArtifactsOf(run), name)
	})
}

// Caches lists the caches of a project.
func (f actionFiles) Caches(ctx context.Context, project string) ([]actionservices.Cache, error) {
	all, err := f.list(ctx, state.CachesOf(project))
	return describe(all, func(c *actionservices.Cache, file *state.File) { c.Content = contentOf(file) }), err
}

// cacheName returns the name of a cache in its project.
func cacheName(c *actionservices.Cache) string {
	return fmt.Sprintf("%q %q %q", c.Scope, c.Key, c.Version)
}

// KeepCache keeps the file, and then names it. A name whose file is gone can be used again.
func (f actionFiles) KeepCache(
	ctx context.Context, project string, c actionservices.Cache, file string,
) (sum string, err error) {
	kept, err := f.keep(ctx, file, natscall.Encode(c))
	if err != nil {
		return "", err
	}
	in := state.CachesOf(project)
	if err := f.makeRoom(ctx, in); err != nil {
		return "", err
	}
	return kept.Digest, f.name(ctx, in, cacheName(&c), kept, func(ctx context.Context, before *state.File) error {
		if before.Digest == kept.Digest { // as when the answer was lost
			return errNamed
		}
		there, err := f.m.files.UseProject(ctx, before.Digest, before.Size)
		if err == nil && there {
			err = fs.ErrExist
		}
		return err
	})
}

// makeRoom removes the names of the least recently used caches of a project, if they are too many.
func (f actionFiles) makeRoom(ctx context.Context, in string) error {
	all, err := f.list(ctx, in)
	if err != nil || len(all) < maxActionCaches {
		return err
	}
	slices.SortFunc(all, (*state.File).Compare)
	for _, old := range all[:len(all)-maxActionCaches+1] {
		var c actionservices.Cache
		if json.Unmarshal(old.About, &c) != nil {
			continue
		}
		err := f.persist(ctx, func(ctx context.Context) error { return f.m.store.RemoveFile(ctx, in, cacheName(&c)) })
		if err != nil {
			return err
		}
	}
	return nil
}

// UseCache notes the use of the file and of the name.
func (f actionFiles) UseCache(ctx context.Context, project string, c *actionservices.Cache) (there bool, err error) {
	digest, size, err := archiveOf(c.Content)
	if err != nil {
		return false, nil //nolint:nilerr // it is of no use
	}
	err = f.persist(ctx, func(ctx context.Context) (err error) {
		if there, err = f.m.files.UseProject(ctx, digest, size); err != nil || !there {
			return err
		}
		file, err := f.m.store.FindFile(ctx, state.CachesOf(project), cacheName(c))
		if err == nil && file != nil {
			err = f.m.store.UseFile(ctx, file)
		}
		return err
	})
	return there, err
}

// Open opens a file. With several managers it may have to come from the cluster.
func (f actionFiles) Open(ctx context.Context, content string) (file *os.File, sum string, err error) {
	digest, size, err := archiveOf(content)
	if err == nil {
		file, err = f.m.files.PeekProject(ctx, digest, size)
	}
	return file, digest, err
}
