package jobdoor

import (
	"context"
	"errors"
	"log/slog"
	"time"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

// Host is the manager. Its functions are safe for concurrent use.
type Host struct {
	// Reserve waits for a slot. The caller releases it, whether Submit has used it or not.
	Reserve func(ctx context.Context) (Room, error)
	// TryReserve is Reserve for a slot that is free and that nobody waits for. Without one it returns nil.
	TryReserve func() Room
	// Submit keeps a pipeline with a key. The same key again is the same pipeline. Its first build has the slot of room;
	// nil: it waits for one.
	Submit func(ctx context.Context, key string, req *pb.SubmitPipelineRequest, room Room) (id string, err error)
	// Watch calls changed with a pipeline, now and after each change, until that returns false. The pipeline is nil if it
	// is not kept, or not any more.
	Watch func(ctx context.Context, id string, changed func(*pb.Pipeline) bool) error
	// Log passes the log of a build to take, piece by piece, from an offset to the present end, or with follow until the
	// build has ended. A log that is not kept any more is empty.
	Log func(ctx context.Context, build string, offset int64, follow bool, take func(Piece) error) error
	// Result returns the result of a build that has ended, nil if it is not kept.
	Result func(ctx context.Context, build string) (*Result, error)
	// Outputs returns the outputs of a job of a pipeline that has ended, without those that have secrets.
	Outputs func(ctx context.Context, pipeline string, job *pb.PipelineJob) (map[string]string, error)
	// Missing returns the references of workflows that a pipeline calls, and whose files its request does not have.
	Missing func(req *pb.SubmitPipelineRequest) []string
	// Cancel ends the pipeline of a key. What has ended, or is not there, stays as it is.
	Cancel func(ctx context.Context, key string) error
	// Keep keeps a text of this manager under a key, sealed, and returns when it is on disk. Kept returns all such texts
	// whose keys begin with a prefix. Forget removes one.
	Keep   func(ctx context.Context, key string, text []byte) error
	Kept   func(ctx context.Context, prefix string) (map[string][]byte, error)
	Forget func(ctx context.Context, key string) error
	// Term waits until this manager may have tasks. The context that it returns ends with ctx, and when another manager
	// may take them over: then the door does nothing more about them. The door calls stop when it has ended all of that.
	Term func(ctx context.Context) (term context.Context, stop context.CancelFunc, err error)
	// KeepTask keeps a new task of this manager, sealed, and returns when it is on disk, or ErrKept if there is one with
	// this key. Tasks leaves it out in this term. ChangeTask keeps another text of it, and ForgetTask removes it.
	KeepTask   func(ctx context.Context, key string, text []byte) error
	ChangeTask func(ctx context.Context, key string, text []byte) error
	ForgetTask func(ctx context.Context, key string) error
	// Tasks passes the tasks whose keys begin with a prefix to begin, once in a term: those that this manager has, and
	// those of managers that have ended, which are this manager's then.
	Tasks func(term context.Context, prefix string, begin func(key string, text []byte)) error
	// AwaitTasks waits until Tasks may find more. It returns an error when the term ends.
	AwaitTasks func(term context.Context) error
	// Labels returns the labels of each VM.
	Labels func() []map[string]string
	// Version is the version of the program.
	Version string
	// Logger receives messages for an operator.
	Logger *slog.Logger
}

// ErrKept says that a task is kept already.
var ErrKept = errors.New("the task is kept already")

// Piece is a piece of a log.
type Piece struct {
	Text []byte
	At   time.Time // when it was written
	// Missing counts bytes before the text that are not kept any more.
	Missing int64
}

// Result is the result of a build.
type Result struct {
	// Reason is why it failed, such as script_failure; empty if it has succeeded.
	Reason, Message string
	ExitCode        int
	// LogBytes is the length of its log.
	LogBytes int64
}

// Room is a slot that is reserved.
type Room interface {
	// Release gives it back, unless a build has it. Idempotent.
	Release()
	// Soften says that the slot may be given back. The channel is closed when another one waits for it.
	Soften() <-chan struct{}
}

// RefusedError says that the manager does not take a pipeline: it cannot run, however often it is asked.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }
