package stepmuxv1

// JobContext is the name of the job variable with the properties of a workflow's context job, beside its status, as a
// JSON object. Nothing else is told of the variable.
const JobContext = "STEPMUX_JOB"
