package manager_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// trace returns the trace of a build.
func (r *running) trace(id string) (*trace.Trace, error) {
	r.t.Helper()
	stream, err := r.Artifacts(r.t.Context(), &pb.ArtifactsRequest{Id: id, Trace: true})
	require.NoError(r.t, err)
	var text []byte
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return trace.Parse(text)
		}
		if err != nil {
			return nil, err
		}
		text = append(text, msg.GetData()...)
	}
}

func TestATraceIsKeptAlsoByTheNextManagerAndOnlyIfItIsAskedFor(t *testing.T) {
	f := newFleet(t)
	m := f.start(t)
	wait, open := gate(t)
	j := job("echo begun; " + wait)
	j.Trace = true
	id := m.submitJob(j)
	m.await(id, "begun")
	_, err := m.trace(id)
	require.Equal(t, codes.NotFound, status.Code(err))
	require.ErrorContains(t, err, "it has no trace yet")
	m.stop()
	open()
	m = f.start(t)
	log, b := m.wait(id, 0)
	require.Empty(t, b.GetResult().GetReason(), log)
	kept, err := m.trace(id)
	require.NoError(t, err, log)
	text, err := kept.Encode()
	require.NoError(t, err)
	require.EqualValues(t, len(text), b.GetResult().GetTrace())
	require.NotContains(t, string(text), "a-hidden-value")
	files, err := os.ReadDir(filepath.Join(f.dir, "artifacts"))
	require.NoError(t, err)
	require.Len(t, files, 1)

	id = m.submit("true")
	_, b = m.wait(id, 0)
	require.Zero(t, b.GetResult().GetTrace())
	_, err = m.trace(id)
	require.ErrorContains(t, err, "has no trace")
}

func TestABuildWhoseTraceCannotBeKeptSaysSoInItsLog(t *testing.T) {
	f := newFleet(t)
	m := f.start(t)
	require.NoError(t, os.RemoveAll(filepath.Join(f.dir, "artifacts")))
	j := job("printf part")
	j.Trace = true
	id := m.submitJob(j)
	log, b := m.wait(id, 0)
	require.Empty(t, b.GetResult().GetReason())
	require.Contains(t, log, "part\nstep runner: there is no trace: ")
}

// A part of a project took room for a day after its manager was killed: a second attempt with a project of more than
// half of the room was refused.
func TestWhatAKilledManagerWasGettingTakesNoRoom(t *testing.T) {
	t.Parallel()
	text, digest := archive(t, "file", "content")
	f := newFleet(t)
	f.change = func(cfg *manager.Config) { cfg.FileBytes = int64(len(text)) * 3 / 2 }
	f.start(t).stop()
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "projects", ".part-1"), text[:len(text)-1], 0o600))
	wanted, err := f.start(t).keep(text, digest)
	require.NoError(t, err)
	require.EqualValues(t, len(text), wanted)
}

// archive returns an archive with one file, and its digest.
func archive(t *testing.T, name, content string) (text []byte, digest string) {
	t.Helper()
	return archiveOf(t, map[string]string{name: content})
}

// archiveOf packs files, by their names.
func archiveOf(t *testing.T, files map[string]string) (text []byte, digest string) {
	t.Helper()
	var packed bytes.Buffer
	z, err := zstd.NewWriter(&packed)
	require.NoError(t, err)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}))
		_, err = io.WriteString(w, files[name])
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, z.Close())
	sum := sha256.Sum256(packed.Bytes())
	return packed.Bytes(), hex.EncodeToString(sum[:])
}

// keep has the manager keep an archive, and returns how many bytes of it were wanted.
func (r *running) keep(text []byte, digest string) (wanted int64, err error) {
	r.t.Helper()
	stream, err := r.KeepProject(r.t.Context())
	require.NoError(r.t, err)
	require.NoError(r.t, stream.Send(&pb.KeepProjectRequest{Digest: digest, Size: int64(len(text))}))
	resp, err := stream.Recv()
	if err != nil || resp.GetWanted() == 0 {
		return 0, err
	}
	wanted = resp.GetWanted()
	_ = stream.Send(&pb.KeepProjectRequest{Data: text}) // Recv tells of a failure
	_, err = stream.Recv()
	return wanted, err
}

// unpacked returns the content of a file in the artifacts of a build.
func (r *running) unpacked(id, name string) (text string, err error) {
	r.t.Helper()
	found := false
	err = r.eachArtifact(id, func(h *tar.Header, from io.Reader) {
		if h.Name == name {
			data, err := io.ReadAll(from)
			require.NoError(r.t, err)
			text, found = string(data), true
		}
	})
	require.True(r.t, found || err != nil, "there is no %s", name)
	return text, err
}

// archived returns the names of the files that a build has made; none if no archive is kept.
func (r *running) archived(id string) (names []string) {
	r.t.Helper()
	_ = r.eachArtifact(id, func(h *tar.Header, _ io.Reader) { names = append(names, h.Name) })
	return names
}

func (r *running) eachArtifact(id string, do func(h *tar.Header, from io.Reader)) error {
	r.t.Helper()
	stream, err := r.Artifacts(r.t.Context(), &pb.ArtifactsRequest{Id: id})
	require.NoError(r.t, err)
	var packed bytes.Buffer
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		packed.Write(msg.GetData())
	}
	z, err := zstd.NewReader(&packed)
	require.NoError(r.t, err)
	defer z.Close()
	for files := tar.NewReader(z); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		require.NoError(r.t, err)
		do(h, files)
	}
}

func TestFilesOfABuildOutliveTheManager(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.change = func(cfg *manager.Config) { cfg.FileBytes = 2000 }
	m := f.start(t)
	text, digest := archive(t, "in.txt", "from the project")
	wanted, err := m.keep(text, digest)
	require.NoError(t, err)
	require.Len(t, text, int(wanted))
	wanted, err = m.keep(text, digest)
	require.NoError(t, err)
	require.Zero(t, wanted, "it is there")

	wait, open := gate(t)
	j := job("cat in.txt; echo; echo begun\n" + wait + "\nmkdir out; echo $CI_PROJECT_DIR >out/dir; exit 3")
	j.Project, j.ProjectBytes, j.Artifacts = digest, int64(len(text)), []string{"out"}
	id := m.submitJob(j)
	m.await(id, "from the project\nbegun\n")
	_, err = m.unpacked(id, "out/dir")
	require.ErrorContains(t, err, "has not ended: it has no artifacts yet")

	// A second project has no room while a build needs the first.
	require.NoError(t, m.m.SweepFiles(t, 0))
	require.NoError(t, m.m.SweepFiles(t, 0))
	_, err = m.keep(make([]byte, 1900), digest[1:]+"0")
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	m.stop()
	m = f.start(t)
	open()
	_, b := m.wait(id, 0)
	require.Equal(t, "script_failure", b.GetResult().GetReason(), b.GetResult().GetMessage())
	require.Positive(t, b.GetResult().GetArtifacts())
	dir, err := m.unpacked(id, "out/dir")
	require.NoError(t, err)
	require.Contains(t, dir, "/project\n")

	// Now the first one goes, and so do artifacts beyond the bound.
	require.NoError(t, m.m.SweepFiles(t, 1999))
	require.NoFileExists(t, filepath.Join(f.dir, "projects", digest))
	require.NoError(t, os.Remove(filepath.Join(f.dir, "artifacts", id+".tar.zst")))
	_, err = m.unpacked(id, "out/dir")
	require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "are not kept any more")

	for _, bad := range []*pb.SubmitRequest{
		{Job: j.Job, Project: digest, ProjectBytes: int64(len(text))},
		{Job: j.Job, Project: "../key", ProjectBytes: 32},
		{Job: j.Job, Artifacts: []string{""}},
		{Job: j.Job, Labels: map[string]string{"zone": "a"}},
	} {
		_, err = m.Submit(t.Context(), bad)
		require.Error(t, err)
	}
	_, err = m.keep([]byte("x"), "../key")
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	_, err = m.keep([]byte("other"), digest)
	require.ErrorContains(t, err, "changed on its way")
}

// killServe ends the step runner of a script, which is the parent of its init.
const killServe = "{ kill -9 $(cut -d' ' -f4 /proc/$PPID/stat); exec sleep 1000; }"

//stepmux:reliability promises | A lost build of a manager runs again only if it was submitted with `--retry lost`
func TestABuildThatIsLostRunsAgainIfItAskedForThat(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	ledger := filepath.Join(t.TempDir(), "ledger")
	script := "echo run >>" + ledger + "; echo begun\n[ $(wc -l <" + ledger + ") -gt 1 ] || " + killServe + "\necho done"
	j := job(script)
	j.RetryLost = true
	id := m.submitJob(j)
	text, b := m.wait(id, 0)
	require.Empty(t, b.GetResult().GetReason(), b.GetResult().GetMessage())
	require.EqualValues(t, 1, b.GetAttempt())
	require.Regexp(t, `(?s)step runner: the build is lost and runs again: .*\nbegun\ndone\n$`, text)
	runs, err := os.ReadFile(ledger)
	require.NoError(t, err)
	require.Equal(t, "run\nrun\n", string(runs))

	once := m.submit("echo begun; " + killServe)
	_, b = m.wait(once, 0)
	require.Equal(t, "runner_system_failure", b.GetResult().GetReason())
	require.Zero(t, b.GetAttempt())
}

// The status named the second attempt of a build in a way that logs, cancel and the status page did not know.
func TestTheStatusNamesABuildThatRunsAgainByItsID(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	wait, open := gate(t)
	defer open()
	mark := filepath.Join(t.TempDir(), "mark")
	j := job("[ -e " + mark + " ] || { touch " + mark + "; " + killServe + "; }\necho again\n" + wait)
	j.RetryLost = true
	id := m.submitJob(j)
	m.await(id, "again\n")
	st, err := m.Status(t.Context(), &pb.StatusRequest{})
	require.NoError(t, err)
	var s control.Status
	require.NoError(t, json.Unmarshal(st.GetJson(), &s))
	require.Equal(t, id, s.Instances[0].Builds[0].ID)
}

// Each name of a project that a client made up stayed in memory.
func TestAManagerHoldsOnlyProjectsThatItHas(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	text, digest := archive(t, "a", "text")
	_, err := m.keep(text, digest)
	require.NoError(t, err)
	for project, code := range map[string]codes.Code{
		strings.Repeat("0", 64): codes.FailedPrecondition,
		strings.Repeat("1", 64): codes.FailedPrecondition,
		digest:                  codes.OK,
	} {
		one := job("true")
		one.Project, one.ProjectBytes = project, int64(len(text))
		_, err := m.Submit(t.Context(), one)
		require.Equal(t, code, status.Code(err), "%v", err)
	}
	require.Equal(t, 1, m.m.RecentProjects())
}

// Artifacts that were still arriving were removed to make room for those of another build: their own build failed, and
// said that a file was missing.
func TestArtifactsThatArriveAreNotRemovedForThoseOfAnotherBuild(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.change = func(cfg *manager.Config) { cfg.FileBytes, cfg.Keep = 2000, time.Minute }
	m := f.start(t)
	arriving := func(age time.Duration) *os.File {
		file, err := os.CreateTemp(filepath.Join(f.dir, "artifacts"), ".artifacts-")
		require.NoError(t, err)
		t.Cleanup(func() { file.Close() })
		_, err = file.Write(make([]byte, 1500))
		require.NoError(t, err)
		at := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(file.Name(), at, at))
		return file
	}
	one, other := arriving(time.Hour), arriving(0)
	require.NoError(t, m.m.KeepResult(t, "2-00000000", other))
	require.NoError(t, m.m.SweepFiles(t, 0))
	require.NoError(t, m.m.KeepResult(t, "1-00000000", one))
	require.NoFileExists(t, filepath.Join(f.dir, "artifacts", "2-00000000.tar.zst"), "there is no room for both")
}

// The trace of a build took the place of its own artifacts, which were then missing without a word.
func TestTheTraceOfABuildDoesNotTakeThePlaceOfItsArtifacts(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.change = func(cfg *manager.Config) { cfg.FileBytes, cfg.Keep = 2000, time.Minute }
	m := f.start(t)
	keep := func(name string) {
		file, err := os.CreateTemp(filepath.Join(f.dir, "artifacts"), ".artifacts-")
		require.NoError(t, err)
		defer file.Close()
		_, err = file.Write(make([]byte, 1500))
		require.NoError(t, err)
		require.NoError(t, m.m.KeepResult(t, name, file))
	}
	left := func() (names []string) {
		entries, err := os.ReadDir(filepath.Join(f.dir, "artifacts"))
		require.NoError(t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	keep("1-00000000")
	keep("1-00000000.trace.json")
	require.Equal(t, []string{"1-00000000.tar.zst", "1-00000000.trace.json"}, left())
	keep("10-00000000")
	require.Equal(t, []string{"10-00000000.tar.zst"}, left())
}
