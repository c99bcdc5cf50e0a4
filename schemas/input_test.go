package schemas

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
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

func TestUnitsReadsDigitsAndNeverRounds(t *testing.T) {
	check := func(quantity string, scale uint8, want int64) {
		t.Helper()
		got, err := Units(quantity, scale)
		if err != nil || got != want {
			t.Errorf("Units(%q, %d) = %d, %v; want %d", quantity, scale, got, err, want)
		}
	}
	check("0", 0, 0)
	check("0.00", 2, 0)
	check("374", 0, 374)
	check("12.5", 2, 1250)
	check("12.50", 2, 1250)
	check("0.01", 2, 1)
	check("12", 9, 12_000_000_000)
	check("9007199254740991", 0, MaxUnits)
	check("90071992547409.91", 2, MaxUnits)
	check("9007199.254740991", 9, MaxUnits)
	refused := func(quantity string, scale uint8) {
		t.Helper()
		got, err := Units(quantity, scale)
		if refusal, ok := errors.AsType[*Refusal](err); !ok || refusal.Reason != ReasonInvalidQuantity {
			t.Errorf("Units(%q, %d) = %d, %v; want it refused", quantity, scale, got, err)
		}
	}
	for _, q := range []string{"", "-1", "+1", "1e3", "1E3", "NaN", "Inf", " 1", "1 ", "1,0", "01", ".5", "5.", "1.2.3", "0x1", "１", "--1", "1_0", "\x001"} {
		refused(q, 9)
	}
	refused("1.0", 0) // more digits than the scale, although they say nothing
	refused("1.239", 2)
	refused("9007199254740992", 0)
	refused("90071992547409.92", 2)
	refused("9007199254740991", 1)
	refused("1000000000", 9)
	refused(strings.Repeat("9", 60), 0)
	refused(strings.Repeat("0", 65), 0)
}

// TestUnitsAgreesWithBigRat compares with exact arithmetic on random decimals.
func TestUnitsAgreesWithBigRat(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20_000 {
		quantity := strconv.FormatUint(r.Uint64N(1<<uint(r.IntN(60)+1)), 10)
		if digits := r.IntN(11); digits > 0 {
			quantity += "." + fmt.Sprintf("%0*d", digits, r.Uint64N(uint64(math.Pow10(digits))))
		}
		scale := uint8(r.IntN(MaxScale + 1))
		exact, ok := new(big.Rat).SetString(quantity)
		if !ok {
			t.Fatal(quantity)
		}
		exact.Mul(exact, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil)))
		_, fraction, _ := strings.Cut(quantity, ".")
		want := exact.IsInt() && exact.Num().Cmp(big.NewInt(MaxUnits)) <= 0 && len(fraction) <= int(scale)
		got, err := Units(quantity, scale)
		if (err == nil) != want || want && got != exact.Num().Int64() {
			t.Fatalf("Units(%q, %d) = %d, %v; exactly %s (seed %d)", quantity, scale, got, err, exact, seed)
		}
	}
}

func TestParseTimeAgreesWithTheStandardLibrary(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 50_000 {
		text := fmt.Sprintf("%04d-%02d-%02dT%02d:%02d:%02d", r.IntN(10_000), r.IntN(14), r.IntN(33), r.IntN(25), r.IntN(61), r.IntN(61))
		if digits := r.IntN(10); digits > 0 {
			text += "." + fmt.Sprintf("%0*d", digits, r.IntN(int(math.Pow10(digits))))
		}
		if r.IntN(2) == 0 {
			text += "Z"
		} else {
			text += fmt.Sprintf("%c%02d:%02d", "+-"[r.IntN(2)], r.IntN(24), r.IntN(60))
		}
		got, ok := parseTime([]byte(text))
		want, err := time.Parse(time.RFC3339Nano, text)
		if ok != (err == nil) || ok && (!got.Equal(want) || got.Location() != time.UTC) {
			t.Fatalf("%s: %v %v, the standard library says %v %v (seed %d)", text, got, ok, want, err, seed)
		}
	}
}

func parse(t testing.TB, value string) *Input {
	t.Helper()
	in := new(Input)
	if err := ParseStructured([]byte(value), in); err != nil {
		t.Fatal(err)
	}
	return in
}

func TestDigestIsOfContentOnly(t *testing.T) {
	measures := []Measure{{"message", 1, 0}}
	base := `{"specversion":"1.0","id":"e1","source":"/s","type":"t","subject":"u","time":"2026-07-31T14:59:59Z","data":{"metric":"message","quantity":"1","dimensions":{"a":"1","b":"2"}}}`
	digest := ContentDigest(parse(t, base), measures, "t-1")
	same := func(what, old, changed string) {
		t.Helper()
		if text := strings.Replace(base, old, changed, 1); ContentDigest(parse(t, text), measures, "t-1") != digest {
			t.Errorf("%s changes the digest", what)
		}
	}
	same("trace context", `"type"`, `"traceparent":"00-1","tracestate":"a=b","type"`)
	same("an extension", `"type"`, `"sequence":"1","type"`)
	same("a reservation", `"metric"`, `"reservation":"r","metric"`)
	same("the order of dimensions", `"a":"1","b":"2"`, `"b":"2","a":"1"`)
	same("the encoding of a character", `"a":"1"`, `"a":"\u0031"`)
	same("the way of writing a measure", `"metric":"message","quantity":"1"`, `"measures":[{"quantity":1,"metric":"message"}]`)
	same("the id, which is the identity's", `"e1"`, `"e2"`)
	other := func(what, old, changed string) {
		t.Helper()
		if text := strings.Replace(base, old, changed, 1); ContentDigest(parse(t, text), measures, "t-1") == digest {
			t.Errorf("%s does not change the digest", what)
		}
	}
	other("the type", `"type":"t"`, `"type":"t2"`)
	other("the subject", `"u"`, `"v"`)
	other("the time", `59Z`, `58Z`)
	other("the same instant written otherwise", `59Z`, `59+00:00`)
	other("no time", `"time":"2026-07-31T14:59:59Z",`, ``)
	other("a dimension's value", `"b":"2"`, `"b":"3"`)
	other("a dimension's name", `"b":"2"`, `"c":"2"`)
	other("no dimension", `,"b":"2"`, ``)
	other("a boundary between name and value", `"a":"1"`, `"a1":""`)
	in := parse(t, base)
	for _, d := range []Digest{
		ContentDigest(in, measures, "t-2"),
		ContentDigest(in, []Measure{{"message", 2, 0}}, "t-1"),
		ContentDigest(in, []Measure{{"message", 1, 1}}, "t-1"),
		ContentDigest(in, []Measure{{"messages", 1, 0}}, "t-1"),
		ContentDigest(in, append(measures, Measure{"x", 1, 0}), "t-1"),
	} {
		if d == digest {
			t.Error("another tenant or other measures do not change the digest")
		}
	}
	cancel := func(target string) Digest {
		return ContentDigest(parse(t, `{"specversion":"1.0","id":"c1","source":"/s","type":"kanjo.usage.cancel.v1","data":{"target":"`+target+`"}}`), nil, "t-1")
	}
	if cancel("e1") == cancel("e2") {
		t.Error("the target of a correction does not change the digest")
	}
}

// The digest is compared between records of different releases, so its bytes are fixed.
func TestDigestIsTheSameInEveryRelease(t *testing.T) {
	in := parse(t, structuredSample)
	got := ContentDigest(in, []Measure{{"ai_request", 1, 0}, {"audio_seconds", 1250, 2}}, "t-0001")
	if want := "8b1a3728d2fa2f4e4033854180fc516e"; got.String() != want {
		t.Errorf("the digest is %s, want %s", got, want)
	}
}

func TestOneEventInEveryModeIsTheSameInput(t *testing.T) {
	var structured, binary, overHTTP Input
	if err := ParseKafka[Header](nil, []byte(structuredSample), &structured); err != nil {
		t.Fatal(err)
	}
	if err := ParseKafka(binaryHeaders(), []byte(binarySample), &binary); err != nil {
		t.Fatal(err)
	}
	header := http.Header{"Content-Type": {"application/json; charset=utf-8"}}
	for _, h := range binaryHeaders() {
		if name, found := strings.CutPrefix(h.Key, "ce_"); found {
			header.Set("ce-"+name, string(h.Value))
		}
	}
	if err := ParseHTTPBinary(header, []byte(binarySample), &overHTTP); err != nil {
		t.Fatal(err)
	}
	if a, b, c := describe(&structured), describe(&binary), describe(&overHTTP); a != b || b != c {
		t.Errorf("structured\n%sbinary\n%sover HTTP\n%s", a, b, c)
	}
}

func TestHTTPHeaderValuesAreDecodedAsTheBindingSays(t *testing.T) {
	read := func(id string) (string, error) {
		var in Input
		err := ParseHTTPBinary(map[string][]string{"Ce-Specversion": {"1.0"}, "Ce-Id": {id}, "Ce-Source": {"/s"}, "Ce-Type": {"t"}}, []byte(`{"metric":"m","quantity":1}`), &in)
		return in.ID, err
	}
	for sent, want := range map[string]string{
		"plain": "plain", "a%20b": "a b", "%e6%97%A5": "日", "50%25": "50%", "a%2541": "a%41", `"a b"`: "a b", `"a\"b"`: `a"b`, `a"b`: `a"b`,
	} {
		if got, err := read(sent); got != want || err != nil {
			t.Errorf("%s is read as %q, %v; want %q", sent, got, err, want)
		}
	}
	for _, sent := range []string{"50%", "%2", "%zz", "%ff", "%00", "%20a", ""} {
		if got, err := read(sent); err == nil {
			t.Errorf("%q is read as %q; want it refused", sent, got)
		}
	}
	var in Input
	err := ParseHTTPBinary(map[string][]string{"Ce-Specversion": {"1.0"}, "Ce-Id": {"a", "b"}, "Ce-Source": {"/s"}, "Ce-Type": {"t"}}, []byte(`{"metric":"m","quantity":1}`), &in)
	if refusal, ok := errors.AsType[*Refusal](err); !ok || refusal.Reason != ReasonDuplicateMember {
		t.Errorf("a header with two values: %v", err)
	}
}

func TestSplitBatchFindsTheEvents(t *testing.T) {
	event := `{"specversion":"1.0","id":"]},[{","source":"/s","type":"t","data":{"metric":"m","quantity":1}}`
	check := func(batch string, want int) {
		t.Helper()
		parts, err := SplitBatch([]byte(batch))
		if want < 0 {
			if refusal, ok := errors.AsType[*Refusal](err); !ok || refusal.Reason != ReasonMalformed {
				t.Errorf("%.60s: %d parts, %v; want it refused as malformed", batch, len(parts), err)
			}
			return
		}
		if err != nil || len(parts) != want {
			t.Errorf("%.60s: %d parts, %v; want %d", batch, len(parts), err, want)
		}
	}
	check("[]", 0)
	check(" [ ] ", 0)
	check("["+event+"]", 1)
	check("["+event+" ,\n"+event+", "+event+"]", 3)
	check(`[1,"a",null,true,[[]],{}]`, 6) // ParseStructured refuses each by itself
	check("["+strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000)+"]", 1)
	for _, bad := range []string{"", "{}", event, "[", "[" + event, "[" + event + "]x", "[,]", "[1,]", "[1 2]", "[}", `["a`, "[:]", strings.Repeat("[", 100_000)} {
		check(bad, -1)
	}
	parts, err := SplitBatch([]byte("[" + event + "," + event + "]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range parts {
		if in := parse(t, string(part)); in.ID != "]},[{" {
			t.Errorf("part read as %q", in.ID)
		}
	}
}

func TestTheLargestEventIsReadAndOneByteMoreIsNot(t *testing.T) {
	padded := func(size int) []byte {
		head, tail := `{"specversion":"1.0","id":"e1","source":"/s","type":"t","ext":"`, `","data":{"metric":"m","quantity":1}}`
		return []byte(head + strings.Repeat("x", size-len(head)-len(tail)) + tail)
	}
	var in Input
	if err := ParseStructured(padded(MaxEventBytes), &in); err != nil {
		t.Error(err)
	}
	tooLarge := func(err error) {
		t.Helper()
		if refusal, ok := errors.AsType[*Refusal](err); !ok || refusal.Reason != ReasonTooLarge {
			t.Errorf("one byte more: %v", err)
		}
	}
	tooLarge(ParseStructured(padded(MaxEventBytes+1), &in))
	headers := append(binaryHeaders(), Header{"ce_ext", bytes.Repeat([]byte("x"), MaxEventBytes)})
	tooLarge(ParseKafka(headers, []byte(binarySample), &in))
}

func TestAnInputMayBeUsedAgainAndItsStringsKept(t *testing.T) {
	var in Input
	if err := ParseStructured([]byte(structuredSample), &in); err != nil {
		t.Fatal(err)
	}
	want, kept := describe(&in), in
	kept.Measures, kept.Dimensions = slices.Clone(in.Measures), slices.Clone(in.Dimensions)
	for _, path := range append(examples(t, "valid"), examples(t, "invalid")...) {
		headers, value := readExample(t, path)
		_ = ParseKafka(headers, value, &in) // only its effect on what was kept matters
		for i := range value {
			value[i] = 'x'
		}
	}
	if got := describe(&kept); got != want {
		t.Errorf("what was kept became\n%swant\n%s", got, want)
	}
}

func TestInternedStringsStayRightWhenTheTableOverflows(t *testing.T) {
	var table interner
	for i := range 200_000 {
		want := "s" + strconv.Itoa(i%50_000)
		if got := table.get([]byte(want)); got != want {
			t.Fatalf("got %q for %q", got, want)
		}
	}
	// Names that differ in a digit, as tenants' names do, must not fight for the same slots.
	for _, format := range []string{"t-%04d", "%06d", "tenant-%05d-production", "wf-%03d", "%d"} {
		table, misses := interner{}, 0
		for round := range 100 {
			before := table.misses
			grown := len(table.slots)
			for i := range 200 {
				table.get(fmt.Appendf(nil, format, i))
			}
			if round == 99 && grown == len(table.slots) {
				misses = table.misses - before
			}
		}
		if misses > 60 { // chance alone gives some 35 in a table of 1,024
			t.Errorf("%d of 200 names like "+format+" are forgotten in each round", misses, 7)
		}
	}
	if len(table.slots) > internSlotsMax {
		t.Errorf("%d slots, at most %d", len(table.slots), internSlotsMax)
	}
}

func TestWhatNoEventCanCarryIsNoNameAndNoSource(t *testing.T) {
	for _, good := range []string{"t-0001", "日本", "a b", strings.Repeat("x", MaxNameBytes)} {
		if err := CheckName(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", " a", "a\u3000", "a\nb", "\xff", strings.Repeat("x", MaxNameBytes+1)} {
		if CheckName(bad) == nil {
			t.Errorf("%q passes as a name", bad)
		}
	}
	for _, good := range []string{"/n8n/prod-1", "https://example.com/a?b=c#d", "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66", "a"} {
		if err := CheckSource(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "a b", "/日本", "HTTP://x", "%", ":", strings.Repeat("x", MaxAttributeBytes+1)} {
		if CheckSource(bad) == nil {
			t.Errorf("%q passes as a source", bad)
		}
	}
}
