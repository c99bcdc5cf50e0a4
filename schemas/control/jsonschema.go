package control

import _ "embed"

// JSONSchema is the JSON Schema (draft 2020-12) of a control document as kanjo apply reads it. It is for editors and
// documentation; apply checks more than a schema can say.
//
//go:embed jsonschema/control.json
var JSONSchema []byte
