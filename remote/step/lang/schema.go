package lang

import _ "embed"

//go:generate go test -run TestSchemaIsThatOfTheParser -update

//go:embed schema/steps.schema.json
var schema []byte

// Schema returns a JSON Schema (draft 2020-12) for editors: of jobs, and of both documents of a step. It refuses the
// same texts as [Parse] and [ParseStep], as far as a schema can. Do not change the slice.
func Schema() []byte { return schema }
