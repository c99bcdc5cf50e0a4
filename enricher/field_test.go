package enricher

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/schemas"
)

// told is an event whose parts a case spoils, and how each form writes it. The list of measures is not in the order of their names.
type told struct {
	source, tenant, time, metric, quantity string
}

// list and single are the two ways to say in data what was used. A list begins with a measure that has no fault.
func (e told) list() string {
	return fmt.Sprintf(`{"tenant_id":%q,"measures":[{"metric":"output_tokens","quantity":"0"},{"metric":%q,"quantity":%q}]}`, e.tenant, e.metric, e.quantity)
}

func (e told) single() string {
	return fmt.Sprintf(`{"tenant_id":%q,"metric":%q,"quantity":%q}`, e.tenant, e.metric, e.quantity)
}

func (e told) structured(data string) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":"e1","source":%q,"type":"t","time":%q,%s}`, e.source, e.time, data)
}

// forms writes the event in each form in which it can come.
func (e told) forms() map[string]func(in *schemas.Input) error {
	structured := func(text string) func(*schemas.Input) error {
		return func(in *schemas.Input) error { return schemas.ParseStructured([]byte(text), in) }
	}
	binary := func(data string) func(*schemas.Input) error {
		headers := []schemas.Header{{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: []byte("e1")},
			{Key: "ce_source", Value: []byte(e.source)}, {Key: "ce_type", Value: []byte("t")}, {Key: "ce_time", Value: []byte(e.time)}}
		return func(in *schemas.Input) error { return schemas.ParseKafka(headers, []byte(data), in) }
	}
	http := func(data string) func(*schemas.Input) error {
		header := map[string][]string{"Ce-Specversion": {"1.0"}, "Ce-Id": {"e1"}, "Ce-Source": {e.source}, "Ce-Type": {"t"}, "Ce-Time": {e.time}}
		return func(in *schemas.Input) error { return schemas.ParseHTTPBinary(header, []byte(data), in) }
	}
	attribute := fmt.Sprintf(`"tenantid":%q,"data":%s`, e.tenant, strings.Replace(e.list(), fmt.Sprintf(`"tenant_id":%q,`, e.tenant), "", 1))
	return map[string]func(*schemas.Input) error{
		"structured list":      structured(e.structured(`"data":` + e.list())),
		"structured single":    structured(e.structured(`"data":` + e.single())),
		"structured base64":    structured(e.structured(fmt.Sprintf(`"data_base64":%q`, base64.StdEncoding.EncodeToString([]byte(e.list()))))),
		"structured attribute": structured(e.structured(attribute)),
		"binary list":          binary(e.list()),
		"binary single":        binary(e.single()),
		"http list":            http(e.list()),
		"http single":          http(e.single()),
		"flat": structured(fmt.Sprintf(`{"event_id":"e1","source":%q,"tenant_id":%q,"occurred_at":%q,"metric":%q,"quantity":%q}`,
			e.source, e.tenant, e.time, e.metric, e.quantity)),
	}
}

// TestOneFaultHasOneName spoils one part of an event in two ways: one that reading alone finds, and one that takes the control plane.
// Both must name the part as the event's form writes it.
func TestOneFaultHasOneName(t *testing.T) {
	sound := told{source: "/trusted", tenant: "t-0007", time: ingested.Format(time.RFC3339), metric: "input_tokens", quantity: "7"}
	names := func(list, single, flat string) map[string]string {
		return map[string]string{"structured list": list, "structured base64": list, "structured attribute": list, "binary list": list, "http list": list,
			"structured single": single, "binary single": single, "http single": single, "flat": flat}
	}
	tenant := names("data.tenant_id", "data.tenant_id", "tenant_id")
	tenant["structured attribute"] = "tenantid"
	quantity := names("data.measures[1].quantity", "data.quantity", "quantity")
	metric := names("data.measures[1].metric", "data.metric", "metric")
	for _, c := range []struct {
		name  string
		spoil func(*told)
		want  map[string]string
	}{
		{"a quantity that is no decimal", func(e *told) { e.quantity = "-7" }, quantity},
		{"a quantity with more digits than its metric", func(e *told) { e.quantity = "7.5" }, quantity},
		{"a quantity beyond the largest", func(e *told) { e.quantity = "9007199254740993" }, quantity},
		{"a quantity of zero", func(e *told) { e.quantity = "0" }, names("data.measures", "data.quantity", "quantity")},
		{"a metric without a name", func(e *told) { e.metric = "" }, metric},
		{"a metric that nobody registered", func(e *told) { e.metric = "tokens" }, metric},
		{"a tenant that no event can carry", func(e *told) { e.tenant = " " }, tenant},
		{"a tenant that nobody registered", func(e *told) { e.tenant = "t-ghost" }, tenant},
		{"a tenant that the source may not name", func(e *told) { e.source = "/bound" }, tenant},
		{"a time that is none", func(e *told) { e.time = "yesterday" }, names("time", "time", "occurred_at")},
		{"a time beyond the trust", func(e *told) { e.source, e.tenant, e.time = "/front", "t-0001", "2020-01-01T00:00:00Z" }, names("time", "time", "occurred_at")},
		{"a source that is no URI reference", func(e *told) { e.source = "a b" }, names("source", "source", "source")},
		{"a source that nobody registered", func(e *told) { e.source = "/nobody" }, names("source", "source", "source")},
	} {
		e := sound
		c.spoil(&e)
		for form, read := range e.forms() {
			if refusal := verdict(t, read); refusal == nil || refusal.Field != c.want[form] {
				t.Errorf("%s, %s: %v, want it at %q", c.name, form, refusal, c.want[form])
			}
		}
	}
	for form, read := range sound.forms() {
		if refusal := verdict(t, read); refusal != nil {
			t.Errorf("%s: the sound event is refused: %v", form, refusal)
		}
	}
}

// TestWhatIsMissingIsNamedToo is about parts that nobody sent: they are named as the form would write them.
func TestWhatIsMissingIsNamedToo(t *testing.T) {
	for value, want := range map[string]string{
		`{"event_id":"e1","source":"/trusted","metric":"input_tokens","quantity":1}`:                                                                                                                         "tenant_id",
		`{"event_id":"e1","source":"/front","metric":"input_tokens","quantity":1}`:                                                                                                                           "occurred_at",
		`{"event_id":"e1","source":"/trusted","tenant_id":"t-0001"}`:                                                                                                                                         "quantity",
		`{"event_id":"e1","source":"/trusted","tenant_id":"t-0001","quantity":1}`:                                                                                                                            "metric",
		`{"event_id":"e1","source":"/trusted","tenant_id":"t-0001","metric":"input_tokens","quantity":1,"data.more":1}`:                                                                                      "data.more",
		`{"source":"/trusted","tenant_id":"t-0001","metric":"input_tokens","quantity":1}`:                                                                                                                    "event_id",
		`{"specversion":"1.0","id":"e1","source":"/trusted","type":"t","data":{"metric":"input_tokens","quantity":1}}`:                                                                                       "data.tenant_id",
		`{"specversion":"1.0","id":"e1","source":"/front","type":"t","data":{"metric":"input_tokens","quantity":1}}`:                                                                                         "time",
		`{"specversion":"1.0","id":"e1","source":"/trusted","type":"t","data":{"tenant_id":"t-0001"}}`:                                                                                                       "data.measures",
		`{"specversion":"1.0","id":"e1","source":"/bound","type":"t","data":{"metric":"input_tokens","quantity":1,"more[]":1}}`:                                                                              "data.more[]",
		`{"specversion":"1.0","id":"e1","source":"/bound","type":"kanjo.usage.cancel.v1","data":{"target":"e0","metric":"m","quantity":1}}`:                                                                  "data.quantity",
		`{"specversion":"1.0","id":"e1","source":"/unbound-ghost","type":"t","time":"2026-07-31T15:00:00Z","data":{"metric":"input_tokens","quantity":1}}`:                                                   "source",
		`{"specversion":"1.0","id":"e1","source":"/bound","type":"t","data":{"measures":[{"metric":"b","quantity":1},{"metric":"c","quantity":1},{"metric":"a","quantity":1},{"metric":"b","quantity":2}]}}`: "data.measures[3].metric",
	} {
		refusal := verdict(t, func(in *schemas.Input) error { return schemas.ParseStructured([]byte(value), in) })
		if refusal == nil || refusal.Field != want {
			t.Errorf("%s: %v, want it at %q", value, refusal, want)
		}
	}
}

// verdict reads an event and asks the control plane about it.
func verdict(t *testing.T, read func(*schemas.Input) error) *schemas.Refusal {
	t.Helper()
	in := new(schemas.Input)
	if err := read(in); err != nil {
		refusal, ok := errors.AsType[*schemas.Refusal](err)
		if !ok {
			t.Fatal(err)
		}
		return refusal
	}
	meta := trustedMeta()
	var out schemas.UsageEvent
	return Resolve(in, meta, rules(t), &out)
}
