package archive

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance/manager/natscall"
	"github.com/stepmux/stepmux/internal/plural"
)

const (
	// objectPiece is the size of the pieces of an archive in NATS. Servers that take smaller messages get smaller ones.
	objectPiece = 1 << 20
	// objectWait bounds the wait for NATS with each piece, as while it elects a leader.
	objectWait = 30 * time.Second
	// objectRest is how long Sweep leaves an archive alone after its last use, and pieces after the last of them.
	objectRest = 2 * time.Minute
)

// Objects keeps archives in NATS by their names, as an object store (ADR-20 of NATS; "nats object" shows it). It reads
// and writes the pieces by itself: Put of nats.go has up to 4000 pieces under way, which a stream with a slow disk
// refuses, and reading the result of Get does not end with its context. It is safe for concurrent use.
type Objects struct {
	server Server
	bucket string
	stream jetstream.Stream
	most   int64 // bytes of all archives; Sweep holds it, not the stream, for which the servers would reserve them
	// Rest is how long Sweep leaves an archive alone after its last use.
	Rest time.Duration
}

// openObjects opens an object store, which is made if it is missing.
func openObjects(ctx context.Context, server Server, bucket string, most int64) (o *Objects, err error) {
	o = &Objects{server: server, bucket: bucket, most: most, Rest: objectRest}
	// As CreateObjectStore does, which lets all replicas be read.
	o.stream, err = server.Stream(ctx, jetstream.StreamConfig{
		Name: "OBJ_" + bucket, Subjects: []string{o.pieces(">"), o.about(">")}, AllowRollup: true,
		Discard: jetstream.DiscardNew,
	})
	return o, err
}

// pieces and about are the subjects of the pieces of an object, and of its description.
func (o *Objects) pieces(id string) string  { return "$O." + o.bucket + ".C." + id }
func (o *Objects) about(name string) string { return "$O." + o.bucket + ".M." + name }

func (o *Objects) aboutOf(name string) string {
	return o.about(base64.URLEncoding.EncodeToString([]byte(name)))
}

// publish stores a message, also while NATS elects a leader.
func (o *Objects) publish(ctx context.Context, msg *nats.Msg, options ...jetstream.PublishOpt) error {
	ctx, cancel := context.WithTimeout(ctx, objectWait)
	defer cancel()
	return o.server.Persist(ctx, func(ctx context.Context) error {
		_, err := o.server.JS.PublishMsg(ctx, msg, options...)
		return err
	})
}

// describe stores the description of an object, by compare-and-set: revision is that of the one before, or 0.
func (o *Objects) describe(ctx context.Context, info *jetstream.ObjectInfo, revision uint64) error {
	msg := nats.NewMsg(o.aboutOf(info.Name))
	var err error
	if msg.Data, err = json.Marshal(info); err != nil {
		return err
	}
	msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	return o.publish(ctx, msg, jetstream.WithExpectLastSequencePerSubject(revision))
}

// find returns the description of an archive and its revision. It is nil if the archive is not there.
func (o *Objects) find(ctx context.Context, name string) (*jetstream.ObjectInfo, uint64, error) {
	var msg *jetstream.RawStreamMsg
	ctx, cancel := context.WithTimeout(ctx, objectWait)
	defer cancel()
	err := o.server.Persist(ctx, func(ctx context.Context) (err error) {
		msg, err = o.stream.GetLastMsgForSubject(ctx, o.aboutOf(name))
		return err
	})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := objectOf(msg)
	return info, msg.Sequence, err
}

// info describes the stream, with the numbers of messages of the subjects that match a filter.
func (o *Objects) info(ctx context.Context, filter string) (info *jetstream.StreamInfo, err error) {
	ctx, cancel := context.WithTimeout(ctx, objectWait)
	defer cancel()
	err = o.server.Persist(ctx, func(ctx context.Context) (err error) {
		info, err = o.stream.Info(ctx, jetstream.WithSubjectFilter(filter))
		return err
	})
	return info, err
}

// objectOf reads the description of an object. It is nil for one that was removed by other programs.
func objectOf(msg *jetstream.RawStreamMsg) (*jetstream.ObjectInfo, error) {
	info := &jetstream.ObjectInfo{}
	if err := json.Unmarshal(msg.Data, info); err != nil {
		return nil, fmt.Errorf("read the description of an archive: %w", err)
	}
	if info.Deleted {
		return nil, nil
	}
	info.ModTime = msg.Time
	return info, nil
}

// Put keeps an archive. When it returns, that is on the disks of the cluster. If there is one of that name it stays:
// it is the same.
func (o *Objects) Put(ctx context.Context, name string, from io.Reader) (err error) {
	info := &jetstream.ObjectInfo{Bucket: o.bucket, NUID: rand.Text()}
	info.Name = name
	subject := o.pieces(info.NUID)
	kept := false
	defer func() {
		if !kept {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.server.Timeout)
			defer cancel()
			_ = o.stream.Purge(ctx, jetstream.WithPurgeSubject(subject)) // else Sweep does it, or their age
		}
	}()
	sum := sha256.New()
	piece := make([]byte, min(objectPiece, o.server.MaxPiece))
	for {
		n, err := io.ReadFull(from, piece)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		_, _ = sum.Write(piece[:n]) // never fails
		msg := &nats.Msg{Subject: subject, Data: piece[:n]}
		if err := o.publish(ctx, msg, jetstream.WithMsgID(info.NUID+":"+strconv.Itoa(int(info.Chunks)))); err != nil {
			return err
		}
		info.Chunks++
		info.Size += uint64(n) // not negative
	}
	info.Digest = jetstream.GetObjectDigestValue(sum)
	for sent := false; ; sent = true {
		before, revision, err := o.find(ctx, name)
		if err != nil || before != nil { // of another manager, or of this attempt, whose acknowledgment was lost
			kept = sent && (err != nil || before.NUID == info.NUID)
			return err
		}
		if err = o.describe(ctx, info, revision); !natscall.Changed(err) {
			// Without an answer, as when ctx ended, the description may be there: its pieces must not go then.
			_, refused := errors.AsType[*jetstream.APIError](err)
			kept = !refused || natscall.Silent(err)
			return err
		}
	}
}

// touch notes the use of an archive, and reports whether it is there with this length.
func (o *Objects) touch(ctx context.Context, name string, size int64) (bool, error) {
	for {
		info, revision, err := o.find(ctx, name)
		if err != nil || info == nil || info.Size != uint64(size) { // not negative
			return false, err
		}
		if err = o.describe(ctx, info, revision); !natscall.Changed(err) {
			return err == nil, err
		}
	}
}

// ErrDamaged says that an archive was changed since it was put.
var ErrDamaged = errors.New("the archive is damaged in NATS")

// Read writes an archive to a Writer. An error of ErrDamaged may come after all of it was written. Without the archive
// the error wraps fs.ErrNotExist.
func (o *Objects) Read(ctx context.Context, name string, to io.Writer) error {
	info, _, err := o.find(ctx, name)
	if err != nil {
		return err
	}
	if info == nil {
		return fs.ErrNotExist
	}
	subject := o.pieces(info.NUID)
	now, err := o.info(ctx, subject)
	if err != nil {
		return err
	}
	if missing := int64(info.Chunks) - int64(now.State.Subjects[subject]); missing != 0 { // they are few
		return fmt.Errorf("%w: missing of its %s: %d", ErrDamaged, plural.Count(int64(info.Chunks), "piece"), missing)
	}
	messages, stop, err := natscall.Read(ctx, o.stream, subject, 1)
	if err != nil {
		return err
	}
	defer stop()
	sum, size := sha256.New(), uint64(0)
	for range info.Chunks {
		next, cancel := context.WithTimeout(ctx, objectWait)
		msg, err := messages.Next(jetstream.NextContext(next))
		cancel()
		if err != nil {
			return err
		}
		_, _ = sum.Write(msg.Data()) // never fails
		size += uint64(len(msg.Data()))
		if size > info.Size {
			break
		}
		if _, err := to.Write(msg.Data()); err != nil {
			return err
		}
	}
	if size != info.Size || jetstream.GetObjectDigestValue(sum) != info.Digest {
		return fmt.Errorf("%w: its SHA-256 is another than when it was kept", ErrDamaged)
	}
	return nil
}

// over returns how many bytes there would be too many with so many more.
func (o *Objects) over(ctx context.Context, more int64) (int64, error) {
	now, err := o.info(ctx, "")
	if err != nil {
		return 0, err
	}
	return max(int64(now.State.Bytes)+more-o.most, 0), nil // not that many
}

// Sweep removes archives that were not used for a time, and others, those used longest ago first, until there is room
// for more bytes. It keeps those that are needed, and those in Rest. needed may be nil. It removes pieces of archives
// that were not put to the end, too. It returns how many bytes there are too many then.
//
// An archive that is used between the look at it and its removal stays: the removal names the revision that was seen.
// So one that a request needs is never removed, if it is touched before the request is queued.
func (o *Objects) Sweep(
	ctx context.Context, more int64, keep time.Duration, needed func(context.Context) (map[string]bool, error),
) (over int64, err error) {
	before, err := o.info(ctx, o.pieces(">"))
	if err != nil {
		return 0, err
	}
	if before.State.Msgs == 0 {
		return max(more-o.most, 0), nil
	}
	now := before.TimeStamp // of the server, as the times of the messages
	found, err := o.List(ctx)
	if err != nil {
		return 0, err
	}
	need := map[string]bool{}
	if needed != nil {
		if need, err = needed(ctx); err != nil {
			return 0, err
		}
	}
	slices.SortFunc(found, func(a, b Object) int { return a.Info.ModTime.Compare(b.Info.ModTime) })
	whole := map[string]bool{}
	total := int64(before.State.Bytes) + more // not that many
	for _, one := range found {
		whole[o.pieces(one.Info.NUID)] = true
		unused := now.Sub(one.Info.ModTime)
		if need[one.Info.Name] || unused < o.Rest || unused < keep && total <= o.most {
			continue
		}
		removed, err := o.remove(ctx, one)
		if err != nil {
			return 0, err
		}
		if removed {
			total -= int64(one.Info.Size) // not that many
		}
	}
	for subject := range before.State.Subjects {
		if whole[subject] {
			continue
		}
		last, err := o.stream.GetLastMsgForSubject(ctx, subject)
		if err == nil && now.Sub(last.Time) >= o.Rest {
			err = o.stream.Purge(ctx, jetstream.WithPurgeSubject(subject))
		}
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return 0, err
		}
	}
	return o.over(ctx, more)
}

// Object is an archive in a list.
type Object struct {
	Info     *jetstream.ObjectInfo
	revision uint64
}

// List returns all archives.
func (o *Objects) List(ctx context.Context) (all []Object, err error) {
	for seq := uint64(1); ; seq++ {
		msg, err := o.stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(o.about(">")))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		seq = msg.Sequence
		if info, err := objectOf(msg); err == nil && info != nil { // else its pieces are removed
			all = append(all, Object{info, msg.Sequence})
		}
	}
}

// remove removes an archive, unless its description was changed since, and reports whether it did.
func (o *Objects) remove(ctx context.Context, one Object) (bool, error) {
	about := o.aboutOf(one.Info.Name)
	err := o.stream.Purge(ctx, jetstream.WithPurgeSubject(about), jetstream.WithPurgeSequence(one.revision+1))
	if err != nil {
		return false, err
	}
	_, err = o.stream.GetLastMsgForSubject(ctx, about)
	if err == nil {
		return false, nil
	}
	if !errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, err
	}
	return true, o.stream.Purge(ctx, jetstream.WithPurgeSubject(o.pieces(one.Info.NUID)))
}
