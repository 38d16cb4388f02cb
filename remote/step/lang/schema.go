package lang

import _ "embed"

//go:generate go test -run TestSchemaIsThatOfTheParser -update

//go:embed schema/steps.schema.json
var schema []byte

// Schema returns a JSON Schema (draft 2020-12) for editors: of jobs, and of each of the two documents that
// a step has. It refuses what [Parse] and [ParseStep] refuse, as far as a schema can. The slice must not
// be changed.
func Schema() []byte { return schema }
