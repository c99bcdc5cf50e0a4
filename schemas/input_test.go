package schemas

import (
	"testing"
)

const structuredSample = `{"specversion":"1.0","id":"exec-1:node-a:0:0","source":"/n8n/prod-1","type":"kanjo.usage.v1","time":"2026-07-31T14:59:59.999Z","datacontenttype":"application/json","data":{"tenant_id":"t-0001","measures":[{"metric":"ai_request","quantity":"1"},{"metric":"input_tokens","quantity":"374"},{"metric":"output_tokens","quantity":44}],"dimensions":{"model":"gpt-4o","region":"eu"}}}`

const binarySample = `{"tenant_id":"t-0001","measures":[{"metric":"ai_request","quantity":"1"},{"metric":"input_tokens","quantity":"374"},{"metric":"output_tokens","quantity":44}],"dimensions":{"model":"gpt-4o","region":"eu"}}`

func binaryHeaders() []Header {
	return []Header{
		{"ce_specversion", []byte("1.0")}, {"ce_id", []byte("exec-1:node-a:0:0")}, {"ce_source", []byte("/n8n/prod-1")},
		{"ce_type", []byte("kanjo.usage.v1")}, {"ce_time", []byte("2026-07-31T14:59:59.999Z")}, {"content-type", []byte("application/json")},
	}
}

func BenchmarkParseStructured(b *testing.B) {
	var in Input
	text := []byte(structuredSample)
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if err := ParseStructured(text, &in); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseBinary(b *testing.B) {
	var in Input
	headers, value := binaryHeaders(), []byte(binarySample)
	b.ReportAllocs()
	for b.Loop() {
		if err := ParseKafka(headers, value, &in); err != nil {
			b.Fatal(err)
		}
	}
}
