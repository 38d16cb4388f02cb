package connector

import (
	"encoding/json"

	"google.golang.org/protobuf/proto"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// withContainers returns a job of a workflow, to whose context job the description of its containers is added. Other
// jobs stay as they are.
func withContainers(job *pb.Job, containers map[string]any) *pb.Job {
	for i, v := range job.GetVariables() {
		var known map[string]any
		if v.GetKey() != pb.JobContext || len(containers) == 0 || json.Unmarshal([]byte(v.GetValue()), &known) != nil {
			continue
		}
		text, err := json.Marshal(merged(known, containers))
		if err != nil {
			continue
		}
		job = proto.CloneOf(job)
		job.Variables[i].Value = string(text)
	}
	return job
}

// merged adds the entries of more to those of known, also in the objects of both.
func merged(known, more map[string]any) map[string]any {
	if known == nil {
		known = map[string]any{}
	}
	for key, value := range more {
		of, isObject := value.(map[string]any)
		if inner, both := known[key].(map[string]any); isObject && both {
			value = merged(inner, of)
		}
		known[key] = value
	}
	return known
}
