package stepmuxv1

import (
	"maps"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// With returns a job that has the fields of over, and those of j that over does not set. Maps are merged: a key of over
// replaces that of j. Both may be nil. The new job shares lists, bytes and messages with j and over: do not change
// those afterwards. Its maps are its own.
func (j *Job) With(over *Job) *Job {
	merged := &Job{}
	to := merged.ProtoReflect()
	for _, from := range []*Job{j, over} {
		from.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
			if !field.IsMap() {
				to.Set(field, value)
			}
			return true
		})
		if from.GetEnv() != nil {
			if merged.Env == nil {
				merged.Env = make(map[string]string, len(from.GetEnv()))
			}
			maps.Copy(merged.Env, from.GetEnv())
		}
	}
	return merged
}

// PassingAll returns a job whose steps get the whole environment of the runner, as in a container: that has the
// environment of its image.
func PassingAll() *Job { return &Job{PassEnv: []string{"all"}} }
