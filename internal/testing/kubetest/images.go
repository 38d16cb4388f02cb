//go:build kubernetes

package kubetest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"runtime"

	"github.com/stepmux/stepmux/internal/testing/dockertest"
)

// importImages gives containerd the images: Image, and the one of the pods' sandboxes.
func (c *Cluster) importImages() error {
	archive, err := imageArchive(map[string][]string{
		Image: {"sh"}, "local.test/pause:1": {"sleep", "1000000"},
	})
	if err != nil {
		return err
	}
	return c.ctr(io.Discard, archive, "images", "import", "-")
}

// imageArchive returns images of busybox with these commands, as "docker save" writes them.
func imageArchive(commands map[string][]string) (io.Reader, error) {
	var layer, all bytes.Buffer
	files := tar.NewWriter(&layer)
	if err := dockertest.BusyboxFiles(files); err != nil {
		return nil, err
	}
	if err := files.Close(); err != nil {
		return nil, err
	}
	to := tar.NewWriter(&all)
	add := func(name string, text []byte) error {
		if err := to.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			return err
		}
		_, err := to.Write(text)
		return err
	}
	var manifest []Object
	for ref, command := range commands {
		config, err := json.Marshal(Object{
			"architecture": runtime.GOARCH, "os": "linux",
			"config": Object{"Env": []string{"PATH=/bin", "COLOUR=of-the-image"}, "Cmd": command},
			"rootfs": Object{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer.Bytes()))}},
		})
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("%x.json", sha256.Sum256(config))
		if err := add(name, config); err != nil {
			return nil, err
		}
		manifest = append(manifest, Object{"Config": name, "RepoTags": []string{ref}, "Layers": []string{"layer.tar"}})
	}
	text, err := json.Marshal(manifest)
	if err == nil {
		err = add("manifest.json", text)
	}
	if err == nil {
		err = add("layer.tar", layer.Bytes())
	}
	if err == nil {
		err = to.Close()
	}
	return &all, err
}
