package docker_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
)

// registryOf starts a registry that has dockertest.Image as the returned name. answer may answer a request of it first,
// and then returns true.
func registryOf(t *testing.T, d *dockertest.Daemon, answer *func(http.ResponseWriter, *http.Request) bool) string {
	t.Helper()
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if *answer == nil || !(*answer)(w, r) {
			images.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	ref := strings.TrimPrefix(server.URL, "http://") + "/tools/busybox:1" // a daemon trusts a registry on its machine
	_, err := d.Client.ImageTag(t.Context(), client.ImageTagOptions{Source: dockertest.Image, Target: ref})
	require.NoError(t, err)
	pushed, err := d.Client.ImagePush(t.Context(), ref, client.ImagePushOptions{RegistryAuth: "e30K"})
	require.NoError(t, err)
	require.NoError(t, pushed.Wait(t.Context()))
	_, err = d.Client.ImageRemove(t.Context(), ref, client.ImageRemoveOptions{})
	require.NoError(t, err)
	return ref
}

func TestAnImageIsPulledAsThePolicySays(t *testing.T) {
	d := dockertest.Start(t)
	var pulls atomic.Int64
	answer := func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodHead && strings.Contains(r.URL.Path, "/manifests/") {
			pulls.Add(1)
		}
		return false
	}
	cfg := config(t, d)
	cfg.Spec.Image = registryOf(t, d, &answer)
	pulls.Store(0)
	var out bytes.Buffer
	cfg.Log = &out
	again := func(policy place.Pull, want int64) {
		t.Helper()
		cfg.Spec.Pull = policy
		c := start(t, cfg)
		require.Contains(t, c.Image(), "tools/busybox@sha256:")
		require.NoError(t, c.Close(t.Context()))
		require.Equal(t, want, pulls.Load())
	}
	again("", 1)
	again(place.PullIfNotPresent, 1)
	again(place.PullAlways, 2)
	again(place.PullNever, 2)
	require.Equal(t, 2, strings.Count(out.String(), "pulling image "+cfg.Spec.Image))
}

func TestARegistryThatWantsALoginGetsThatOfTheDockerConfiguration(t *testing.T) {
	d := dockertest.Start(t)
	home := t.TempDir()
	t.Setenv("DOCKER_CONFIG", home)
	var answer func(http.ResponseWriter, *http.Request) bool
	cfg := config(t, d)
	cfg.Spec.Image = registryOf(t, d, &answer)
	answer = func(w http.ResponseWriter, r *http.Request) bool {
		user, password, _ := r.BasicAuth()
		if user == "ci" && password == "s3cret" {
			return false
		}
		w.Header().Set("Www-Authenticate", `Basic realm="tools"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	_, err := docker.Start(t.Context(), cfg)
	require.ErrorContains(t, err, fmt.Sprintf("pull image %q", cfg.Spec.Image))
	require.ErrorContains(t, err, "is there a login for its registry in this user's ~/.docker/config.json?")

	host, _, _ := strings.Cut(cfg.Spec.Image, "/")
	auth := base64.StdEncoding.EncodeToString([]byte("ci:s3cret"))
	text := fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, host, auth)
	require.NoError(t, os.WriteFile(filepath.Join(home, "config.json"), []byte(text), 0o600))
	require.NoError(t, start(t, cfg).Close(t.Context()))
}

func TestARegistryThatAnswersWithErrorsIsNamed(t *testing.T) {
	d := dockertest.Start(t)
	var answer func(http.ResponseWriter, *http.Request) bool
	ref := registryOf(t, d, &answer)
	for want, with := range map[string]func(http.ResponseWriter){
		"toomanyrequests": func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = w.Write([]byte(`{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}`))
		},
		"pull image": func(w http.ResponseWriter) { _, _ = w.Write([]byte(strings.Repeat("\x00garbage\n", 1000))) },
	} {
		answer = func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			with(w)
			return true
		}
		cfg := config(t, d)
		cfg.Spec.Image = ref
		_, err := docker.Start(t.Context(), cfg)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "pull image")
		require.NotContains(t, err.Error(), "\n")
		require.Less(t, len(err.Error()), 3000)
	}
	answer = nil
	cfg := config(t, d)
	cfg.Spec.Image = strings.TrimSuffix(ref, ":1") + ":none"
	_, err := docker.Start(t.Context(), cfg)
	require.ErrorContains(t, err, fmt.Sprintf("pull image %q", cfg.Spec.Image))
	require.ErrorContains(t, err, "unknown")
	require.Empty(t, d.Containers(t))
}

// Symptom: a registry that hung held all builds that wanted its image until the timeout of each. As long as new ones
// came, they waited for the same pull.
func TestAPullFromARegistryThatHangsIsGivenUp(t *testing.T) {
	d := dockertest.Start(t)
	t.Cleanup(docker.SetPullStall(2 * time.Second))
	var answer func(http.ResponseWriter, *http.Request) bool
	cfg := config(t, d)
	cfg.Spec.Image = registryOf(t, d, &answer)
	answers := make(chan struct{})
	answer = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/manifests/") {
			<-answers
		}
		return false
	}
	release := sync.OnceFunc(func() { close(answers) })
	t.Cleanup(release)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := docker.Start(ctx, cfg)
	require.ErrorContains(t, err, fmt.Sprintf("pull image %q: the pull made no progress for 2s (does its registry "+
		"answer?)",
		cfg.Spec.Image))
	release()
	require.NoError(t, start(t, cfg).Close(t.Context()))
}

// Symptom: a credential helper that hung, as one that asks for a passphrase does, held all pulls of a manager for ever,
// past the timeouts of their builds.
func TestACredentialHelperThatHangsIsNamed(t *testing.T) {
	d := dockertest.Start(t)
	bin := t.TempDir()
	t.Setenv("DOCKER_CONFIG", bin)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	release, released := filepath.Join(bin, "release"), filepath.Join(bin, "released")
	require.NoError(t, unix.Mkfifo(release, 0o600))
	script := "#!/bin/sh\n[ -e " + released + " ] || cat " + release +
		"\necho credentials not found in native keychain\nexit 1\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "docker-credential-hangs"), []byte(script), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "config.json"), []byte(`{"credsStore": "hangs"}`), 0o600))
	cfg := config(t, d)
	cfg.ReadyTimeout, cfg.Spec.Image = time.Second, "registry.invalid/a:1"
	t.Cleanup(func() {
		require.NoError(t, os.WriteFile(released, nil, 0o600))
		require.NoError(t, os.WriteFile(release, nil, 0)) // it waits for the helper
	})
	for range 2 {
		_, err := docker.Start(t.Context(), cfg)
		require.ErrorContains(t, err, "the credential helper of the Docker configuration for registry.invalid did not "+
			"answer within 1s")
	}
}
