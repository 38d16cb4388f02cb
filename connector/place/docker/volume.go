package docker

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/program"
)

// The step runner is in a volume of the daemon, whose name has the program's checksum, and which all containers mount
// read-only. It is filled once. The file of completeMark comes last in the archive, so its presence says that the
// program is whole.
const completeMark = "complete"

// checksum returns the SHA-256 of all files of a program.
func checksum(bin *program.Binary) (string, error) {
	all := sha256.New()
	files := bin.Files()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		sum, err := files[name].SHA256()
		if err != nil {
			return "", fmt.Errorf("read %s: %w", name, err)
		}
		fmt.Fprintln(all, name, sum)
	}
	return hex.EncodeToString(all.Sum(nil)), nil
}

// programMount mounts the volume of a program. Without NoCopy the daemon would fill an empty volume with files that an
// image has at that place, and these would be the step runner of all later builds.
func programMount(volume string, readOnly bool) mount.Mount {
	return mount.Mount{
		Type: mount.TypeVolume, Source: volume, Target: place.ProgramDir, ReadOnly: readOnly,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true},
	}
}

// programFor returns the program for a platform.
func (c *Container) programFor(platform string) (*program.Binary, error) {
	for _, b := range c.cfg.Programs {
		switch {
		case b.Platform() != platform:
		case b.Dynamic():
			return nil, fmt.Errorf("put stepmux into the container: %s needs shared libraries, which the image may not "+
				"have; use one of make build, or build it with CGO_ENABLED=0", b.Name())
		default:
			return b, nil
		}
	}
	return nil, fmt.Errorf("put stepmux into the container: image %.160q is for %.40s, and there is no stepmux for "+
		"it; name one: --bootstrap-binary %.40s=FILE", c.cfg.Spec.Image, platform, platform)
}

// fill makes sure that the daemon has the volume of bin. image is one that the daemon has.
func (c *Container) fill(ctx context.Context, bin *program.Binary, image string) (volume string, err error) {
	sum, err := checksum(bin)
	if err != nil {
		return "", err
	}
	volume = "stepmux-" + sum[:16]
	d := c.cfg.Daemon
	return volume, d.share(ctx, &d.programs, sum, func(ctx context.Context) (struct{}, time.Duration, error) {
		return untilForgotten(c.fillNow(ctx, bin, volume, image))
	})
}

// errProgramGone says that the volume of the program is empty, though it was filled: it was removed since then, as
// `docker volume prune` does, and the daemon made it again for the container.
var errProgramGone = errors.New("the step runner is not in its volume")

// forget makes the next fill look into the volumes of all programs again.
func (d *Daemon) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, filled := range d.programs {
		filled.Forget()
	}
}

// untilForgotten is the result of a flight that is kept until it is forgotten, unless err says that it has failed.
func untilForgotten(err error) (struct{}, time.Duration, error) {
	if err != nil {
		return struct{}{}, 0, err
	}
	return struct{}{}, -1, nil
}

// fillNow fills the volume, unless it is full, by way of a container that never starts.
func (c *Container) fillNow(ctx context.Context, bin *program.Binary, volume, image string) (err error) {
	op := "put stepmux on the Docker daemon"
	whole, end := c.whole(ctx)
	defer end()
	_, err = c.api.VolumeCreate(whole, client.VolumeCreateOptions{Name: volume, Labels: map[string]string{
		labelProgram: bin.Platform(),
	}})
	if err != nil {
		return c.api.failure(whole, op, err)
	}
	made, err := c.api.ContainerCreate(whole, client.ContainerCreateOptions{
		Config: &container.Config{Image: image, Labels: c.labels(image), Cmd: []string{place.ProgramFile}},
		HostConfig: &container.HostConfig{
			NetworkMode: "none", Mounts: []mount.Mount{programMount(volume, false)},
		},
	})
	if err != nil {
		return c.api.failure(whole, op, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.StopTimeout)
		defer cancel()
		err = errors.Join(err, c.remove(ctx, made.ID))
	}()
	return c.put(ctx, made.ID, bin, place.ProgramDir, false)
}

// put puts the program into dir in a container, unless it is there. If whole, it makes dir and the directory of
// sockets, too. It may take long, but bytes must move.
func (c *Container) put(ctx context.Context, id string, bin *program.Binary, dir string, whole bool) error {
	const op = "put stepmux on the Docker daemon"
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	stall := c.cfg.ReadyTimeout
	stalled := time.AfterFunc(stall, func() { stop(fmt.Errorf("the Docker daemon took nothing for %v", stall)) })
	defer stalled.Stop()
	mark := client.ContainerStatPathOptions{Path: dir + "/" + completeMark}
	if _, err := c.api.ContainerStatPath(ctx, id, mark); err == nil {
		return nil
	} // any other error meets the upload, too, whose answer has a text
	began, at, dirs := time.Now(), dir, map[string]int64(nil)
	if whole {
		at, dirs = "/", map[string]int64{place.Home: 0o755, place.RunDir: 0o1777, dir: 0o755}
	}
	archive := archiveOf(bin, strings.TrimPrefix(dir, at), dirs)
	_, err := c.api.CopyToContainer(ctx, id, client.CopyToContainerOptions{
		DestinationPath: at, Content: progress{archive, func(all bool) {
			if all { // the rest is in buffers on the way
				stalled.Reset(4 * stall)
			} else {
				stalled.Reset(stall)
			}
		}},
	})
	_ = archive.Close() // it ends the goroutine that writes it
	if err != nil {
		return c.api.failure(ctx, op, err)
	}
	c.cfg.Logger.Info("stepmux put on the Docker daemon", "container", id, "in", dir, "took", time.Since(began))
	return nil
}

// progress is a reader that calls moved after each Read.
type progress struct {
	io.Reader
	moved func(all bool)
}

func (p progress) Read(text []byte) (int, error) {
	n, err := p.Reader.Read(text)
	p.moved(err != nil)
	return n, err
}

// archiveOf returns a tar archive of directories, of a program in the directory under, and of its mark. Closing it ends
// the goroutine that makes it.
func archiveOf(bin *program.Binary, under string, dirs map[string]int64) *io.PipeReader {
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(writeArchive(w, bin, under, dirs)) }() // always nil
	return r
}

func writeArchive(w io.Writer, bin *program.Binary, under string, dirs map[string]int64) error {
	archive := tar.NewWriter(w)
	if err := writeDirs(archive, dirs); err != nil {
		return err
	}
	// Another manager may put the same there, and containers run it. A link of the last name is never a part of a file.
	salt := rand.Text()[:8]
	for name, file := range bin.Files() {
		whole := path.Join(under, "."+salt+"-"+name)
		if err := writeProgram(archive, whole, file); err != nil {
			return err
		}
		link := &tar.Header{Typeflag: tar.TypeLink, Name: path.Join(under, name), Linkname: whole, Mode: 0o755}
		if err := archive.WriteHeader(link); err != nil {
			return err
		}
	}
	if err := archive.WriteHeader(&tar.Header{Name: path.Join(under, completeMark), Mode: 0o444}); err != nil {
		return err
	}
	return archive.Close()
}

// writeDirs writes directories, given as absolute paths with their permissions, parents first.
func writeDirs(archive *tar.Writer, dirs map[string]int64) error {
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir[1:] + "/", Mode: dirs[dir]})
		if err != nil {
			return err
		}
	}
	return nil
}

func writeProgram(archive *tar.Writer, name string, bin *program.Binary) error {
	file, size, err := bin.Open()
	if err != nil {
		return err
	}
	defer file.Close()
	if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: size}); err != nil {
		return err
	}
	_, err = io.Copy(archive, file)
	return err
}
