package lang

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// Recompile checks a compiled definition that somebody else kept: it makes a draft of it again and compiles that. A
// definition that no text could have become is refused, so that what runs keeps to all that a text must keep to. It
// does not change def. The error is an [*Error], or says that def is not what a text compiles to.
func Recompile(def *pb.Definition) error {
	if count := countSteps(def, 0); count > MaxSteps {
		return fmt.Errorf("the definition has more than %d steps, or they are nested deeper than %d", MaxSteps, maxDepth)
	}
	d, err := draftOfDefinition(def)
	if err != nil {
		return err
	}
	again, err := compile(d)
	if err != nil {
		return err
	}
	if again.GetType() == pb.DefinitionType_exec && def.GetType() == pb.DefinitionType_steps {
		again = sequenceOf(again)
	}
	if !proto.Equal(again, def) {
		return errors.New("the definition is not one that a text compiles to; was it changed?")
	}
	return nil
}

// countSteps counts the steps of def, and of what stands in it. Nesting that is too deep counts as too many.
func countSteps(def *pb.Definition, depth int) int {
	if depth > maxDepth {
		return MaxSteps + 1
	}
	count := len(def.GetSteps())
	for _, s := range def.GetSteps() {
		if s.GetDefinition() != nil && count <= MaxSteps {
			count += countSteps(s.GetDefinition(), depth+1)
		}
	}
	return count
}

// kept is where the parts of a definition stand that has no text.
func kept(path string) place { return place{path: path} }

func keptWord(path, text string) word { return word{at: kept(path), text: text, given: text != ""} }

// draftOfDefinition is a definition as it was before it was compiled.
func draftOfDefinition(def *pb.Definition) (*draftDefinition, error) {
	d := &draftDefinition{at: kept("definition"), v0: def.GetDialect() == pb.Definition_v0, delegate: keptWord("delegate", def.GetDelegate())}
	spec := def.GetSpec()
	if inner := lone(def); inner != nil { // a command that was made a list of one
		def, d.delegate = inner, word{}
	}
	var err error
	if d.spec, err = draftOfSpec(spec.GetSpec()); err != nil {
		return nil, err
	}
	d.env = draftOfEnv(def.GetEnv(), "env")
	if d.outputs, err = draftOfValues(def.GetOutputs(), "outputs"); err != nil {
		return nil, err
	}
	if def.GetType() == pb.DefinitionType_exec {
		d.exec = draftOfExec(def.GetExec(), "exec")
		return d, nil
	}
	d.run, err = draftOfRun(def.GetSteps(), "steps")
	return d, err
}

// lone returns the command that def was made of by sequenceOf, or nil.
func lone(def *pb.Definition) *pb.Definition {
	if len(def.GetSteps()) != 1 {
		return nil
	}
	inner := def.GetSteps()[0].GetDefinition()
	if inner.GetType() != pb.DefinitionType_exec || inner.GetSpec() == nil {
		return nil
	}
	return inner
}

func draftOfRun(list []*pb.Step, path string) (*draftRun, error) {
	run := &draftRun{at: kept(path), steps: make([]draft, len(list))}
	for i, s := range list {
		if err := draftOfStep(s, fmt.Sprintf("%s[%d]", path, i), &run.steps[i]); err != nil {
			return nil, err
		}
	}
	return run, nil
}

// draftOfStep makes d of a step.
func draftOfStep(s *pb.Step, path string, d *draft) (err error) {
	*d = draft{
		at: kept(path), name: keptWord(path+".name", s.GetName()), when: keptWord(path+".when", s.GetWhen()),
		condition: keptWord(path+".condition", s.GetCondition()), timeout: draftOfTimeout(s.GetTimeout(), path+".timeout"),
		env: draftOfEnv(s.GetEnv(), path+".env"), inputsAt: kept(path + ".inputs"),
	}
	if d.inputs, err = draftOfValues(s.GetInputs(), path+".inputs"); err != nil {
		return err
	}
	way := "step"
	switch def := s.GetDefinition(); {
	case def.GetType() == pb.DefinitionType_exec:
		way, d.exec = "exec", draftOfExec(def.GetExec(), path+".exec")
	case def != nil:
		way = "run"
		d.run, err = draftOfRun(def.GetSteps(), path+".run")
	case isShortScript(s):
		way, d.script = "script", keptWord(path+".script", s.GetInputs()[inputScript].GetStringValue())
		d.inputs = slices.DeleteFunc(d.inputs, func(v namedValue) bool { return v.name.text == inputScript })
	default:
		d.ref = draftOfReference(s, path+".step")
	}
	d.ways = []word{{at: kept(path), text: way, given: true}}
	return err
}

// isShortScript reports whether s can be the short form of a call of the script step. What that may hold the long form
// may too.
func isShortScript(s *pb.Step) bool {
	if s.GetStep() != scriptURL || strings.TrimSpace(s.GetInputs()[inputScript].GetStringValue()) == "" {
		return false
	}
	for name := range s.GetInputs() {
		if name != inputScript && name != inputShell {
			return false
		}
	}
	return true
}

func draftOfReference(s *pb.Step, path string) *draftReference {
	ref := s.GetReference()
	d := &draftReference{at: kept(path)}
	switch {
	case s.GetStep() != "":
		d.text = keptWord(path, s.GetStep())
		return d
	case ref.GetProtocol() == pb.Reference_action:
		d.action, d.text = true, keptWord(path, ref.GetRepository()+"@"+ref.GetRev())
		return d
	}
	d.long = true
	form, asWritten := ref.GetProtocol(), escape
	if form == pb.Reference_dynamic {
		form, asWritten = ref.GetForm(), func(template string) string { return template }
	}
	fields := []field{}
	for _, part := range []struct{ key, text string }{
		{"url", ref.GetUrl()},
		{"rev", ref.GetRev()},
		{"sha256", strings.TrimPrefix(ref.GetDigest(), digestPrefix)},
		{"dir", ref.GetPath()},
		{"file", ref.GetFile()},
		{"registry", ref.GetRegistry()},
		{"repository", ref.GetRepository()},
		{"tag", ref.GetTag()},
	} {
		if part.text != "" {
			fields = append(fields, field{keptWord(path, part.key), keptWord(path+"."+part.key, asWritten(part.text))})
		}
	}
	switch form { //nolint:exhaustive // the others have no long form, and the compiler says so
	case pb.Reference_git:
		d.git = fields
	case pb.Reference_zip:
		d.zip = fields
	case pb.Reference_oci:
		d.oci = fields
	}
	return d
}

func draftOfExec(e *pb.Exec, path string) *draftExec {
	d := &draftExec{
		at: kept(path), commandAt: kept(path + ".command"),
		workDir: keptWord(path+".work_dir", e.GetWorkDir()), timeout: draftOfTimeout(e.GetTimeout(), path+".timeout"),
	}
	for i, arg := range e.GetCommand() {
		d.command = append(d.command, word{at: kept(fmt.Sprintf("%s.command[%d]", path, i)), text: arg, given: true})
	}
	return d
}

func draftOfTimeout(t *durationpb.Duration, path string) word {
	if t == nil {
		return word{}
	}
	return word{at: kept(path), text: timeoutText(t), given: true}
}

func draftOfEnv(env map[string]string, path string) []pair {
	var pairs []pair
	for _, key := range sortedKeys(env) {
		pairs = append(pairs, pair{word{kept(path), key, true}, word{kept(path), env[key], true}})
	}
	return pairs
}

func draftOfValues(values map[string]*structpb.Value, path string) ([]namedValue, error) {
	var list []namedValue
	for _, key := range sortedKeys(values) {
		v, err := valueOf(values[key], kept(path))
		if err != nil {
			return nil, err
		}
		list = append(list, namedValue{word{kept(path), key, true}, v})
	}
	return list, nil
}

func draftOfSpec(content *pb.Spec_Content) (*draftSpec, error) {
	d := &draftSpec{delegate: word{given: content.GetDelegate()}}
	for _, name := range sortedKeys(content.GetInputs()) {
		in := content.GetInputs()[name]
		p, err := draftOfParam("inputs", name, in.GetType(), in.GetDefault(), in.GetDescription(), in.GetSensitive())
		if err != nil {
			return nil, err
		}
		for _, option := range in.GetOptions() {
			p.options = append(p.options, word{kept("spec.inputs." + name), option, true})
		}
		p.match = keptWord("spec.inputs."+name, in.GetMatch())
		d.inputs = append(d.inputs, p)
	}
	for _, name := range sortedKeys(content.GetOutputs()) {
		out := content.GetOutputs()[name]
		p, err := draftOfParam("outputs", name, out.GetType(), out.GetDefault(), out.GetDescription(), out.GetSensitive())
		if err != nil {
			return nil, err
		}
		d.outputs = append(d.outputs, p)
	}
	if req := content.GetRequests(); req != nil {
		d.requests = &draftRequests{env: keptWords(req.GetEnv()), vars: keptWords(req.GetVars())}
	}
	return d, nil
}

func draftOfParam(what, name string, kind pb.Spec_InputType, preset *structpb.Value, description string, sensitive bool) (draftParam, error) {
	path := "spec." + what + "." + name
	p := draftParam{
		name: word{kept(path), name, true}, kind: keptWord(path, typeWord(kind)),
		description: keptWord(path, description), sensitive: sensitive,
	}
	if preset != nil {
		v, err := valueOf(escaped(preset), kept(path))
		if err != nil {
			return p, err
		}
		p.preset = &v
	}
	return p, nil
}

func keptWords(texts []string) []word {
	words := make([]word, len(texts))
	for i, text := range texts {
		words[i] = word{kept("spec.requests"), text, true}
	}
	return words
}

// typeWord returns the word of the language for a type, empty for that which none was said for.
func typeWord(kind pb.Spec_InputType) string {
	for _, w := range slices.Sorted(maps.Keys(types)) {
		if types[w] == kind {
			return w
		}
	}
	return ""
}

// escaped returns v with its texts as templates that stand for them: the contrary of unescape.
func escaped(v *structpb.Value) *structpb.Value {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return structpb.NewStringValue(escape(k.StringValue))
	case *structpb.Value_ListValue:
		list := &structpb.ListValue{}
		for _, item := range k.ListValue.GetValues() {
			list.Values = append(list.Values, escaped(item))
		}
		return structpb.NewListValue(list)
	case *structpb.Value_StructValue:
		fields := make(map[string]*structpb.Value, len(k.StructValue.GetFields()))
		for key, item := range k.StructValue.GetFields() {
			fields[key] = escaped(item)
		}
		return structpb.NewStructValue(&structpb.Struct{Fields: fields})
	default:
		return v
	}
}
