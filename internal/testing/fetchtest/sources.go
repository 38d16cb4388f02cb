package fetchtest

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"

	"github.com/stretchr/testify/require"
)

// Sources are servers with a step each.
type Sources struct {
	// Git is the URL of a repository, Zip that of an archive, Image the name of an image with its tag.
	Git, Zip, Image string

	// Repository is the repository behind Git, with the branch main.
	Repository *Repository
	registry   *Registry

	mu      sync.Mutex // guards the following
	archive []byte
}

// ServeSources serves the files in the directories git, zip and image of from until the test ends. dir is for the
// servers' own files.
func ServeSources(t TB, dir string, from fs.FS) *Sources {
	t.Helper()
	root := filepath.Join(dir, "git")
	git := ServeGit(t, root)
	s := &Sources{
		Git:        git.URL + "/steps/echo",
		Repository: NewRepository(t, filepath.Join(root, "steps/echo")),
		registry:   ServeRegistry(t),
	}
	archives := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, _ = w.Write(s.archive)
	}))
	t.Cleanup(archives.Close)
	s.Zip, s.Image = archives.URL+"/echo.zip", s.registry.Host+"/steps/echo:1"
	s.Repository.Commit("main", filesIn(t, from, "git"))
	s.Replace(t, filesIn(t, from, "zip"), filesIn(t, from, "image"))
	return s
}

// Replace replaces the files of the archive and of the image.
func (s *Sources) Replace(t TB, archive, image Files) {
	t.Helper()
	data := Zip(t, archive)
	s.mu.Lock()
	s.archive = data
	s.mu.Unlock()
	s.registry.Push("steps/echo:1", image)
}

// filesIn returns the files below dir.
func filesIn(t TB, from fs.FS, dir string) Files {
	t.Helper()
	sub, err := fs.Sub(from, dir)
	require.NoError(t, err)
	files := Files{}
	require.NoError(t, fs.WalkDir(sub, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(sub, path)
		files[path] = File{Content: string(data)}
		return err
	}))
	return files
}
