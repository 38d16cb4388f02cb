package connector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/mask"
)

// closeLimit bounds the wait until a step runner has forgotten a job that has ended.
const closeLimit = 5 * time.Second

// gitlabExecution is one call of Execute on GitLab's step runner. That program offers the service which the manager
// of GitLab Runner calls, not ours. It does not mask secrets, so we do it here.
type gitlabExecution struct {
	rpc     runnerproto.StepRunnerClient
	job     Job
	log     *buildlog.Log
	secrets mask.Set
	offset  int64 // of the job's log: how many bytes have been delivered
}

// run runs the job. It returns when the job ends, after ctx's cancellation, or after the job's own timeout.
func (e *gitlabExecution) run(ctx, calls context.Context, end context.CancelCauseFunc) (Result, error) {
	req, err := e.request()
	if err == nil {
		err = hide(&e.secrets, e.job.Variables, e.log.Remarks(calls.Done()))
	}
	if err != nil {
		return Result{}, err
	}
	limited := ctx
	limit := e.job.GetTimeout().AsDuration()
	if limit > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	err = deliver(limited, calls, stallLimit, req, func(ctx context.Context) error {
		_, err := e.rpc.Run(ctx, req)
		return e.refusal(req, err)
	}, e.cancel)
	var last *runnerproto.Status
	late := limited.Err() != nil
	if err == nil {
		last, err = e.follow(limited, calls, end)
		late = limited.Err() != nil // later delays of the log do not count as the job's
		if err == nil {
			err = e.log.Flush(calls)
		}
		e.forget(calls)
	}
	switch succeeded := last.GetStatus() == runnerproto.Status_success; {
	case late && !succeeded && ctx.Err() != nil:
		return Result{}, ctx.Err()
	case late && !succeeded && calls.Err() == nil:
		message := fmt.Sprintf("the job took longer than %v", limit)
		return Result{Status: Failed, TimedOut: true, Message: message}, nil
	case err != nil:
		return Result{}, e.masked(err)
	}
	result := gitlabResult(last)
	result.Message = e.secrets.Message(result.Message)
	return result, nil
}

// masked returns err with the secrets in the step runner's text masked.
func (e *gitlabExecution) masked(err error) error {
	told, ok := status.FromError(err)
	if text := e.secrets.Mask(told.Message()); ok && text != told.Message() {
		return status.Error(told.Code(), text)
	}
	return err
}

// hide makes the values of masked variables secrets. says gets a line for each that is too short to be masked.
func hide(secrets *mask.Set, vars []*pb.Variable, says io.Writer) error {
	for _, v := range vars {
		if !v.Masked || v.Value == "" {
			continue
		}
		err := secrets.Add(v.Value)
		switch {
		case errors.Is(err, mask.ErrShort):
			fmt.Fprintf(says, "Variable %s is not masked: %v\n", v.Key, err)
		case err != nil:
			return &RequestError{Message: fmt.Sprintf("mask variable %s: %v", v.Key, err)}
		}
	}
	return nil
}

// request returns the job in the form that this service accepts.
func (e *gitlabExecution) request() (*runnerproto.RunRequest, error) {
	if option := e.unknownOption(); option != "" {
		return nil, &RequestError{Message: fmt.Sprintf("this VM's step runner does not know the option %s; put a stepmux "+
			"on the VM, or leave the option out", option)}
	}
	if e.job.Stderr != nil {
		return nil, &RequestError{Message: "this VM's step runner does not tell stdout and stderr apart; put a stepmux on " +
			"the VM, or leave out Job.Stderr"}
	}
	text, err := gitlabSteps(e.job)
	if err != nil {
		return nil, err
	}
	job := &runnerproto.Job{BuildDir: e.job.WorkDir}
	for _, v := range e.job.Variables {
		job.Variables = append(job.Variables,
			&runnerproto.Variable{Key: v.Key, Value: v.Value, File: v.File, Masked: v.Masked})
	}
	return &runnerproto.RunRequest{Id: e.job.ID, WorkDir: e.job.WorkDir, Env: e.job.Env, Job: job, Steps: text}, nil
}

// known are the options of a job that this service takes in some form.
var known = []protoreflect.Name{
	"steps", "steps_file", "generated", "script", "variables", "env", "timeout", "grace",
}

// unknownOption returns an option of the job that this service does not take, or "".
func (e *gitlabExecution) unknownOption() (option string) {
	e.job.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if !slices.Contains(known, field.Name()) {
			option = strings.ReplaceAll(string(field.Name()), "_", "-")
		}
		return option == ""
	})
	return option
}

// mistakes are the words with which GitLab's step runner begins an error about the job's steps. Its errors have no
// codes of their own. All its other errors about a job are the machine's fault.
var mistakes = []string{"loading step: ", "failed to start step runner service: "}

// refusal turns the error of a Run, if any, into one with a code that separates a mistake in the job from a fault of
// the machine. Some step runners quote the whole request in their refusal, so the steps and the values of environment
// and variables are removed from the text.
func (e *gitlabExecution) refusal(req *runnerproto.RunRequest, err error) error {
	const most = 400 // bytes of the message
	if err == nil {
		return nil
	}
	told := status.Convert(err)
	code := told.Code()
	text := strings.Replace(told.Message(), "reading steps "+strconv.Quote(req.GetSteps())+": ", "", 1)
	isMistake := func(words string) bool { return strings.HasPrefix(text, words) }
	if code == codes.Unknown && slices.ContainsFunc(mistakes, isMistake) {
		code = codes.InvalidArgument
	}
	text = e.withoutValues(text)
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return status.Error(code, text)
}

// withoutValues removes the values of the job's environment and variables from the text of a refusal.
func (e *gitlabExecution) withoutValues(text string) string {
	// Mask first: a masked value may contain the value of another variable.
	text = e.secrets.Mask(text)
	type part struct { // of a value: a text may quote a value line by line, or escaped
		key, text string
	}
	var long, short []part
	add := func(key, value string, masked bool) {
		for _, line := range append(strings.FieldsFunc(value, isLineEnd), value) {
			plain := strings.TrimSpace(line)
			quoted := strconv.Quote(plain)
			for _, text := range []string{plain, quoted[1 : len(quoted)-1]} {
				switch {
				case len(text) >= leastReplaced:
					long = append(long, part{key, text})
				case masked && text != "":
					short = append(short, part{key, text})
				}
			}
		}
	}
	for _, v := range e.job.Variables {
		add(v.GetKey(), v.GetValue(), v.GetMasked())
	}
	for key, value := range e.job.Env {
		add(key, value, false)
	}
	// The longest first: a value may be the beginning of another.
	slices.SortFunc(long, func(a, b part) int {
		return cmp.Or(len(b.text)-len(a.text), strings.Compare(a.key, b.key))
	})
	var pairs []string
	for _, p := range long {
		pairs = append(pairs, p.text, "["+p.key+"]")
	}
	text = strings.NewReplacer(pairs...).Replace(text)
	for _, p := range short {
		text = replaceWord(text, p.text, "["+p.key+"]")
	}
	return text
}

// leastReplaced is the length, in bytes, of the shortest value that is replaced everywhere in a text. A shorter
// masked value is replaced only where it is a word by itself: elsewhere it is likely a part of another word.
const leastReplaced = 4

func isLineEnd(c rune) bool { return c == '\n' || c == '\r' }

// replaceWord replaces word in text where no letter or digit is next to it. The letter of an escape sequence, such as
// \n, does not count as one.
func replaceWord(text, word, by string) string {
	inWord := func(c rune) bool { return unicode.IsLetter(c) || unicode.IsDigit(c) }
	var out strings.Builder
	for from := 0; ; {
		at := strings.Index(text[from:], word)
		if at < 0 {
			out.WriteString(text[from:])
			return out.String()
		}
		at += from
		before, size := utf8.DecodeLastRuneInString(text[:at])
		if strings.HasSuffix(text[:at-size], `\`) {
			before = '\\'
		}
		after, _ := utf8.DecodeRuneInString(text[at+len(word):])
		out.WriteString(text[from:at])
		if from = at + len(word); inWord(before) || inWord(after) {
			out.WriteString(word)
		} else {
			out.WriteString(by)
		}
	}
}

// follow delivers the job's log and returns its final status. When ctx ends, it cancels the job.
func (e *gitlabExecution) follow(
	ctx, calls context.Context, end context.CancelCauseFunc,
) (last *runnerproto.Status, err error) {
	defer cancelAfter(ctx, calls, e.job.GetGrace().AsDuration(), e.cancel, end)()
	masked := e.secrets.NewWriter(logWriter{calls, e.log})
	err = retry(calls, func() (progress bool, err error) {
		before := e.offset
		if err = e.followLogs(calls, masked); err == nil {
			last, err = e.finalStatus(calls)
		}
		if status.Code(err) == codes.NotFound && ctx.Err() != nil {
			err = nil // a step runner without Cancel cancels a job by forgetting it
		}
		return e.offset > before, err
	})
	if err == nil { // otherwise its last bytes may be the beginning of a secret
		err = masked.Close()
	}
	return last, err
}

// followLogs delivers the log from the current offset.
func (e *gitlabExecution) followLogs(ctx context.Context, to io.Writer) error {
	stream, err := e.rpc.FollowLogs(ctx, &runnerproto.FollowLogsRequest{Id: e.job.ID, Offset: e.offset})
	if err != nil {
		return err
	}
	return receive(stream, func(msg *runnerproto.FollowLogsResponse) error {
		if _, err := to.Write(msg.GetData()); err != nil {
			return err
		}
		e.offset += int64(len(msg.GetData()))
		return nil
	})
}

// finalStatus returns the status of a job whose log has ended. If the job is still running, it returns an error that
// makes retry ask again.
func (e *gitlabExecution) finalStatus(ctx context.Context) (*runnerproto.Status, error) {
	resp, err := e.rpc.Status(ctx, &runnerproto.StatusRequest{Id: e.job.ID})
	if err != nil {
		return nil, err
	}
	for _, s := range resp.GetJobs() {
		switch {
		case s.GetId() != e.job.ID:
		case s.GetStatus() == runnerproto.Status_running:
			return nil, status.Error(codes.Unavailable, "the step runner ended the log of a job that runs on")
		default:
			return s, nil
		}
	}
	return nil, status.Error(codes.NotFound, "the step runner does not know the job any more")
}

func (e *gitlabExecution) cancel(ctx context.Context) error {
	_, err := e.rpc.Cancel(ctx, &runnerproto.CancelRequest{Id: e.job.ID})
	if status.Code(err) == codes.Unimplemented {
		_, err = e.rpc.Close(ctx, &runnerproto.CloseRequest{Id: e.job.ID})
	}
	return err
}

// forget makes the step runner remove the job's data. Close removes the rest together with the directory.
func (e *gitlabExecution) forget(calls context.Context) {
	calls, stop := context.WithTimeout(calls, closeLimit)
	defer stop()
	_, _ = e.rpc.Close(calls, &runnerproto.CloseRequest{Id: e.job.ID})
}

// gitlabResult translates the job's final status. An unknown status is not a success.
func gitlabResult(s *runnerproto.Status) Result {
	r := Result{Status: Failed, Message: cmp.Or(s.GetMessage(), "the step runner did not say why")}
	switch s.GetStatus() { //nolint:exhaustive // no other status is a success
	case runnerproto.Status_success:
		return Result{Status: Succeeded}
	case runnerproto.Status_cancelled:
		r.Status = Cancelled
	default:
		r.ExitCode = exitStatusIn(r.Message)
	}
	return r
}

// exitStatusIn returns the N of a message that ends in "exit status N", and 0 for other messages.
func exitStatusIn(message string) int {
	const words = "exit status "
	i := strings.LastIndex(message, words)
	if i < 0 {
		return 0
	}
	n, err := strconv.ParseUint(message[i+len(words):], 10, 31)
	if err != nil {
		return 0
	}
	return int(n)
}

// gitlabSteps returns the job's steps in the form that this service accepts: two YAML documents, the first of them a
// specification without inputs.
func gitlabSteps(job Job) (string, error) {
	if len(job.Steps) == 0 {
		if !utf8.ValidString(job.Script) {
			return "", &RequestError{Message: "the script is not UTF-8, and this VM's step runner takes nothing else"}
		}
		// In ASCII, each escape of a Go string is also one of YAML's double-quoted scalars (YAML 1.2.2, section 5.7).
		return "{}\n---\nrun:\n- name: script\n  script: " + strconv.QuoteToASCII(job.Script) + "\n", nil
	}
	text := string(job.Steps)
	first, more := documents(text)
	switch {
	case !utf8.ValidString(text):
		return "", &RequestError{Message: "the steps are not UTF-8"}
	case more:
		return text, nil
	case first:
		return "{}\n" + text, nil
	default:
		return "{}\n---\n" + text, nil
	}
}

// documents reports whether a YAML text begins with a document mark, and whether it has a second document.
func documents(text string) (begins, more bool) {
	seen := false // part of the first document has been seen
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case line == "---" || strings.HasPrefix(line, "--- "):
			if seen {
				return begins, true
			}
			begins, seen = true, true
		case line != "" && !strings.HasPrefix(strings.TrimLeft(line, " \t"), "#"):
			seen = true
		}
	}
	return begins, false
}
