package managed

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/answers"
	"github.com/stepmux/stepmux/internal/standalone/githubpipeline"
	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/internal/standalone/gitlabpipeline"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// maxListed bounds the list of the files of a project, in bytes.
const maxListed = 64 << 20

// errFormat is the error for a pipeline in a language that a manager cannot run.
var errFormat = errors.New("a manager runs the pipeline of a .gitlab-ci.yml (--format gitlab-ci), or a workflow of " +
	"GitHub (--format github)")

// Source returns the source of a request, its pipeline, and notices about that. src is not changed.
func Source(src standalone.Source) (_ *pb.PipelineSource, p *whole.Pipeline, notices []string, err error) {
	if src.Format != standalone.GitLabCI && src.Format != standalone.GitHub {
		return nil, nil, nil, fmt.Errorf("%s: %w", src.Name, errFormat)
	}
	known, err := src.Learn()
	if err != nil {
		return nil, nil, nil, err
	}
	defer known.Close()
	if src.Format == standalone.GitHub {
		given := src.Vars
		if src.Vars, err = githubpipeline.Variables(src); err == nil {
			src.Predefined = predefined(src.Vars, given)
			p, notices, err = githubpipeline.Read(src)
		}
	} else {
		p, err = gitlabpipeline.Read(src)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	to := &pb.PipelineSource{
		Name: src.Name, Text: src.Text, Format: string(src.Format), Directory: filepath.Base(src.WorkDir),
		Inputs: src.Inputs, Files: filesTo(known.Files), Elsewhere: filesTo(known.Elsewhere),
		HasElsewhere: known.HasElsewhere,
	}
	for _, v := range src.Predefined {
		to.Predefined = append(to.Predefined, &pb.NamedValue{Name: v.Name, Value: strings.ToValidUTF8(v.Value, "?")})
	}
	for _, base := range slices.Sorted(maps.Keys(known.Changed)) {
		c := known.Changed[base]
		to.Changed = append(to.Changed, &pb.Changes{
			Base: base, Paths: validPaths(c.Paths), Unknown: c.Paths == nil, Error: strings.ToValidUTF8(c.Error, "?"),
		})
	}
	if known.Listed != nil {
		to.Listed, err = pack(known.Listed)
	}
	return to, p, append(notices, src.Notices...), err
}

// predefined returns the variables that the caller has not given.
func predefined(all, given []engine.Variable) (list []gitlabci.Variable) {
	for _, v := range all {
		if !slices.ContainsFunc(given, func(g engine.Variable) bool { return g.Key == v.Key }) {
			list = append(list, gitlabci.Variable{Name: v.Key, Value: v.Value})
		}
	}
	return list
}

// validPaths leaves out paths that no message of protobuf can have: no pattern of a text matches them either.
func validPaths(paths []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return strings.ToValidUTF8(path, "") != path })
}

func filesTo(files map[string]answers.File) (list []*pb.SourceFile) {
	for _, path := range slices.Sorted(maps.Keys(files)) {
		f := files[path]
		list = append(list, &pb.SourceFile{Path: path, Data: f.Data, Missing: strings.ToValidUTF8(f.Missing, "?")})
	}
	return list
}

func filesOf(list []*pb.SourceFile) map[string]answers.File {
	files := map[string]answers.File{}
	for _, f := range list {
		files[f.GetPath()] = answers.File{Data: f.GetData(), Missing: f.GetMissing()}
	}
	return files
}

// pack compresses the list of the files of a project.
func pack(paths []string) ([]byte, error) {
	var packed bytes.Buffer
	to := gzip.NewWriter(&packed)
	for _, path := range paths {
		if _, err := io.WriteString(to, path+"\x00"); err != nil {
			return nil, err
		}
	}
	err := to.Close()
	return packed.Bytes(), err
}

// unpack is the reverse of pack, for a list from elsewhere.
func unpack(packed []byte) ([]string, error) {
	if len(packed) == 0 {
		return nil, nil
	}
	from, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("read the list of the files of the project: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(from, maxListed+1))
	if err == nil && len(text) > maxListed {
		err = fmt.Errorf("it has more than %d MiB", maxListed>>20)
	}
	if err != nil {
		return nil, fmt.Errorf("read the list of the files of the project: %w", err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), nil
}

// sourceOf returns the source of the pipeline of a request.
func sourceOf(asked *pb.SubmitPipelineRequest) (src standalone.Source, err error) {
	from := asked.GetSource()
	format := standalone.Format(from.GetFormat())
	if format != standalone.GitLabCI && format != standalone.GitHub {
		return src, fmt.Errorf("%.160s: %w", from.GetName(), errFormat)
	}
	known := &answers.Set{
		Files: filesOf(from.GetFiles()), Elsewhere: filesOf(from.GetElsewhere()), HasElsewhere: from.GetHasElsewhere(),
		Changed: map[string]answers.Changes{},
	}
	for _, c := range from.GetChanged() {
		answer := answers.Changes{Paths: c.GetPaths(), Error: c.GetError()}
		if !c.GetUnknown() && answer.Paths == nil {
			answer.Paths = []string{}
		}
		known.Changed[c.GetBase()] = answer
	}
	if known.Listed, err = unpack(from.GetListed()); err != nil {
		return src, err
	}
	src = standalone.Source{
		Name: from.GetName(), Text: from.GetText(), Format: format, WorkDir: from.GetDirectory(),
		Inputs: from.GetInputs(), Answers: known, Elsewhere: true, NoFiles: asked.GetProject() == "",
		InContainer: asked.GetInImage(), Marks: from.GetMarks(), Actions: from.GetActions(),
		Colours: from.GetMarks() != "",
	}
	for name, ended := range from.GetNeeds() {
		if src.Needs == nil {
			src.Needs = map[string]action.Outcome{}
		}
		result := ended.GetResult()
		src.Needs[name] = action.Outcome{
			Result: result, Outputs: ended.GetOutputs(), Good: result == action.Succeeded, Bad: result == action.Failed,
		}
	}
	for _, v := range asked.GetOptions().GetVariables() {
		src.Vars = append(src.Vars, engine.Variable{
			Key: v.GetKey(), Value: v.GetValue(), File: v.GetFile(), Masked: v.GetMasked(),
		})
	}
	for _, v := range from.GetPredefined() {
		if format == standalone.GitHub {
			src.Vars = append(src.Vars, engine.Variable{Key: v.GetName(), Value: v.GetValue()})
		} else {
			src.Predefined = append(src.Predefined, gitlabci.Variable{Name: v.GetName(), Value: v.GetValue()})
		}
	}
	return src, nil
}

// Missing implements manager.Pipelines.
func (Pipelines) Missing(asked *pb.SubmitPipelineRequest) []string {
	src, err := sourceOf(asked)
	if err != nil || src.Format != standalone.GitHub {
		return nil
	}
	w, err := standalone.ReadWorkflow(src)
	if err != nil { // Read tells it
		return nil
	}
	return w.Missing()
}

// read returns the pipeline of a request, and the files of the project as far as they are listed.
func read(asked *pb.SubmitPipelineRequest) (p *whole.Pipeline, listed []string, err error) {
	src, err := sourceOf(asked)
	if err != nil {
		return nil, nil, err
	}
	if src.Format == standalone.GitHub {
		p, _, err = githubpipeline.Read(src)
	} else {
		p, err = gitlabpipeline.Read(src)
	}
	if err != nil {
		return nil, nil, err
	}
	if err := Choose(p, src.Name, asked.GetChoice()); err != nil {
		return nil, nil, err
	}
	return p, src.Answers.Listed, nil
}

// Choose leaves out the jobs of a pipeline that are not chosen. An error says why nothing can run.
func Choose(p *whole.Pipeline, name string, c *pb.PipelineChoice) error {
	if p.Out != "" {
		return fmt.Errorf("%s: no job runs: with these variables %s starts no pipeline", name, p.Out)
	}
	err := p.Choose(whole.Choice{
		Job: c.GetJob(), Stages: c.GetStages(), Skip: c.GetSkip(), Manual: c.GetManual(),
		WaitDelayed: c.GetWaitDelayed(), SkipTriggers: c.GetSkipTriggers(),
	})
	if err == nil && len(p.Jobs) == 0 {
		err = errors.New("no job runs; --list says why")
	}
	if err == nil {
		err = whole.Check(p)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
