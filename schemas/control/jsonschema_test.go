package control

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(JSONSchema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("https://kanjo.dev/schemas/control.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("https://kanjo.dev/schemas/control.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTheJSONSchemaHasTheFieldsOfTheTypes walks from each kind's type through all that it holds.
func TestTheJSONSchemaHasTheFieldsOfTheTypes(t *testing.T) {
	var doc struct {
		Properties struct {
			Kind struct {
				Enum []Kind `json:"enum"`
			} `json:"kind"`
		} `json:"properties"`
		Defs map[string]struct {
			Properties           map[string]json.RawMessage `json:"properties"`
			AdditionalProperties *bool                      `json:"additionalProperties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(JSONSchema, &doc); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(doc.Properties.Kind.Enum, Kinds()) {
		t.Errorf("kinds %v, want %v", doc.Properties.Kind.Enum, Kinds())
	}
	seen := make(map[reflect.Type]bool)
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			walk(typ.Elem())
			return
		case reflect.Struct:
			if typ == reflect.TypeFor[time.Time]() {
				return // a text
			}
		default:
			return
		}
		if seen[typ] {
			return
		}
		seen[typ] = true
		def, ok := doc.Defs[typ.Name()]
		if !ok {
			t.Errorf("$defs has no %s", typ.Name())
			return
		}
		if def.AdditionalProperties == nil || *def.AdditionalProperties {
			t.Errorf("%s lets unknown fields pass", typ.Name())
		}
		fields := make(map[string]bool)
		for _, f := range reflect.VisibleFields(typ) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			fields[name] = true
			if _, ok := def.Properties[name]; !ok {
				t.Errorf("%s.%s is not in the schema", typ.Name(), name)
			}
			walk(f.Type)
		}
		for name := range def.Properties {
			if !fields[name] {
				t.Errorf("%s.%s is in the schema only", typ.Name(), name)
			}
		}
	}
	for _, k := range Kinds() {
		walk(reflect.TypeOf(NewSpec(k)))
	}
}

// TestTheJSONSchemaTakesTheExamples reads examples/control as JSON; a test of internal/controlplane keeps the file like the YAML.
func TestTheJSONSchemaTakesTheExamples(t *testing.T) {
	text, err := os.ReadFile("testdata/examples.json")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	s := schema(t)
	list, ok := docs.([]any)
	if !ok || len(list) < 15 {
		t.Fatalf("%d examples", len(list))
	}
	for _, doc := range list {
		if err := s.Validate(doc); err != nil {
			t.Error(err)
		}
	}
}

func TestTheJSONSchemaRefuses(t *testing.T) {
	s := schema(t)
	check := func(text string) {
		t.Helper()
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if s.Validate(doc) == nil {
			t.Errorf("%s is taken", text)
		}
	}
	check(`{"kind":"Tennant","name":"a","spec":{}}`)
	check(`{"kind":"Tenant","name":"a"}`)
	check(`{"kind":"Tenant","name":"a","spec":{"zone":"UTC"}}`)
	check(`{"kind":"Tenant","name":"a","spec":{"zone":"UTC","grace":"1h","zoen":"x"}}`)
	check(`{"kind":"Tenant","name":"a","spec":{"zone":"UTC","grace":3600}}`)
	check(`{"kind":"Tenant","name":"a","deleted":true,"spec":{"zone":"UTC","grace":"1h"}}`)
	check(`{"kind":"Metric","name":"a","spec":{"unit":"u","aggregation":"average"}}`)
	check(`{"kind":"Source","name":"/a","spec":{"max_past":"1d"}}`)
	check(`{"kind":"Source","name":"/a","spec":{"max_past":"1d","tenant":"a","trusted_tenants":["*"]}}`)
	check(`{"kind":"GatewayKey","name":"a","spec":{"sha256":"secret","permissions":["ingest"]}}`)
	check(`{"kind":"PriceBook","name":"a","spec":{"currency":"JPY","tax":{"classes":[{"name":"s","rate":10.5}]},"items":[{"key":"a","model":"flat"}]}}`)
}
