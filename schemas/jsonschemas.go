package schemas

import "embed"

// JSONSchemas holds the JSON Schemas (draft 2020-12) of what producers send, under jsonschema/: cloudevent.json for the structured
// mode, usage-data.json, cancel-data.json and amend-data.json for the data alone, and flat-event.json. They are for
// editors, documentation and producers' tests; the parsers check more than a schema can say.
//
//go:embed jsonschema/*.json
var JSONSchemas embed.FS
