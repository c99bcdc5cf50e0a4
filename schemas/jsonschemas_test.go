package schemas

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// compileSchema compiles one of the embedded schemas with its references.
func compileSchema(t testing.TB, name string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	entries, err := JSONSchemas.ReadDir("jsonschema")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := JSONSchemas.ReadFile("jsonschema/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("%s: %v", e.Name(), err)
		}
		if err := c.AddResource("https://kanjo.dev/schemas/"+e.Name(), doc); err != nil {
			t.Fatal(err)
		}
	}
	s, err := c.Compile("https://kanjo.dev/schemas/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestJSONSchemasTakeTheValidExamples(t *testing.T) {
	structured, flat, data := compileSchema(t, "cloudevent.json"), compileSchema(t, "flat-event.json"), compileSchema(t, "usage-data.json")
	for _, path := range examples(t, "valid") {
		headers, value := readExample(t, path)
		schema := structured
		switch name := filepath.Base(path); {
		case strings.HasPrefix(name, "flat"), strings.HasPrefix(name, "headers-of-others"):
			schema = flat
		case strings.HasPrefix(name, "binary"):
			schema = data
		case len(headers) > 0:
			schema = structured
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if err := schema.Validate(doc); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A schema cannot say everything. What it lets pass of the invalid examples is listed, so that a schema that grows lax
// is noticed.
func TestJSONSchemasRefuseWhatTheyCan(t *testing.T) {
	beyondSchemas := []string{
		"duplicate_member--", "no_positive_measure--", // members and sums are not a schema's matter
		"malformed--", // most are no JSON at all
		"invalid_attribute--noncharacter", "invalid_attribute--source-", "invalid_attribute--tenants-differ", "invalid_attribute--flat-bad-time",
		"invalid_attribute--latin-1-data", "invalid_attribute--bad-media-type", "invalid_attribute--leap-second", "invalid_attribute--ten-digit-fraction", "invalid_attribute--time-lower-case",
		"invalid_attribute--wide-integer-extension", "invalid_attribute--huge-integer-extension", "invalid_attribute--exponent-extension", "invalid_attribute--object-extension", "invalid_attribute--control-character-in-extension",
		"invalid_attribute--relative-dataschema", "invalid_attribute--ideographic-blank",
		"invalid_data--bad-base64", "invalid_data--base64-of-text", "invalid_data--metric-twice", "invalid_data--cancel-of-itself", "invalid_data--null-data",
		"invalid_quantity--exponent-number", "invalid_quantity--huge", "too_large--65-extensions",
	}
	structured, flat := compileSchema(t, "cloudevent.json"), compileSchema(t, "flat-event.json")
	refused := 0
	for _, path := range examples(t, "invalid") {
		headers, value := readExample(t, path)
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
		if err != nil || len(headers) > 0 || strings.Contains(path, "huge-exponent") {
			continue // no JSON, not for a schema, or a number on which the validating library itself panics
		}
		schema := structured
		if object, ok := doc.(map[string]any); ok && object["event_id"] != nil {
			schema = flat
		}
		if schema.Validate(doc) != nil {
			refused++
			continue
		}
		listed := false
		for _, prefix := range beyondSchemas {
			listed = listed || strings.HasPrefix(filepath.Base(path), prefix)
		}
		if !listed {
			t.Errorf("%s passes the schema", path)
		}
	}
	if refused < 80 {
		t.Errorf("the schemas refuse %d examples only", refused)
	}
}
