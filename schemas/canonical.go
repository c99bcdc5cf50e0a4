package schemas

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
	"unicode/utf8"
)

// The canonical form is a CloudEvent in Kafka binary mode. Headers carry the CloudEvents attributes; the record key is
// the EventKey's 16 bytes; the record timestamp is IngestedAt; the value is a JSON object with its members in
// this order, the optional ones left out when empty:
//
//	tenant, ingested_at, occurred_from, kind, target, measures[{metric, units, scale}], dimensions{}, reservation,
//	list_cost{micros, currency}, digest, rules, origin
//
// Decode accepts exactly what Append writes: a fixed order makes decoding by hand fast, and any CloudEvents
// client with a JSON parser reads it without knowing the order.

const canonicalContentType = "application/json"

// ErrNotCanonical is matched by every error of Decode. On usage.valid or usage.unique it means that something other than
// the enricher or the deduper writes there: stop, do not skip.
var ErrNotCanonical = errors.New("not a canonical usage event")

// AppendHeaders appends the record headers of e to dst. The values share no memory with e, so the caller may keep them.
func (e *UsageEvent) AppendHeaders(dst []Header) []Header {
	_, dst = AppendHeadersTo(e, nil, dst)
	return dst
}

// Header values that are the same for every event. Nobody writes to a header's value.
var (
	specVersionValue = []byte("1.0")
	contentTypeValue = []byte(canonicalContentType)
)

// AppendHeadersTo is AppendHeaders for headers of any type with the shape of [Header], such as kgo.RecordHeader. It
// puts the values behind each other into arena, so that a batch of events shares a few allocations, and returns both.
// The headers refer to the arena's memory: the caller may append to the arena, and must not change what stands in it.
func AppendHeadersTo[H ~struct {
	Key   string
	Value []byte
}](e *UsageEvent, arena []byte, dst []H) ([]byte, []H) {
	n := len(arena)
	arena = append(arena, e.ID...)
	id := arena[n:len(arena):len(arena)]
	n = len(arena)
	arena = append(arena, e.Source...)
	source := arena[n:len(arena):len(arena)]
	n = len(arena)
	arena = append(arena, e.Type...)
	typ := arena[n:len(arena):len(arena)]
	n = len(arena)
	arena = e.OccurredAt.AppendFormat(arena, time.RFC3339Nano)
	occurred := arena[n:len(arena):len(arena)]
	dst = append(dst,
		H{"ce_specversion", specVersionValue},
		H{"ce_id", id},
		H{"ce_source", source},
		H{"ce_type", typ},
		H{"ce_time", occurred},
		H{"content-type", contentTypeValue},
	)
	if e.Subject != "" {
		n = len(arena)
		arena = append(arena, e.Subject...)
		dst = append(dst, H{"ce_subject", arena[n:len(arena):len(arena)]})
	}
	if e.TraceParent != "" {
		n = len(arena)
		arena = append(arena, e.TraceParent...)
		dst = append(dst, H{"ce_traceparent", arena[n:len(arena):len(arena)]})
	}
	if e.TraceState != "" {
		n = len(arena)
		arena = append(arena, e.TraceState...)
		dst = append(dst, H{"ce_tracestate", arena[n:len(arena):len(arena)]})
	}
	return arena, dst
}

// ingestedLayout prints IngestedAt with the milliseconds that a Kafka timestamp has.
const ingestedLayout = "2006-01-02T15:04:05.000Z"

// appendMillis appends t, which is in UTC, in ingestedLayout. Formatting RFC 3339 without a fraction is several times
// faster than any other layout.
func appendMillis(dst []byte, t time.Time) []byte {
	dst = t.AppendFormat(dst, time.RFC3339)
	ms := t.Nanosecond() / int(time.Millisecond)
	return append(dst[:len(dst)-1], '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10), 'Z')
}

// AppendValue appends the record value of e to dst.
func (e *UsageEvent) AppendValue(dst []byte) []byte {
	dst = append(dst, `{"tenant":`...)
	dst = appendJSONString(dst, e.Tenant)
	dst = append(dst, `,"ingested_at":"`...)
	dst = appendMillis(dst, e.IngestedAt)
	dst = append(dst, '"')
	if e.OccurredFromIngest {
		dst = append(dst, `,"occurred_from":"ingest"`...)
	}
	if e.Kind != KindUsage {
		dst = append(dst, `,"kind":"`...)
		dst = append(dst, e.Kind.String()...)
		dst = append(dst, `","target":`...)
		dst = appendJSONString(dst, e.Target)
	}
	dst = append(dst, `,"measures":[`...)
	for i, m := range e.Measures {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"metric":`...)
		dst = appendJSONString(dst, m.Metric)
		dst = append(dst, `,"units":`...)
		dst = strconv.AppendInt(dst, m.Units, 10)
		if m.Scale != 0 {
			dst = append(dst, `,"scale":`...)
			dst = strconv.AppendUint(dst, uint64(m.Scale), 10)
		}
		dst = append(dst, '}')
	}
	dst = append(dst, ']')
	if len(e.Dimensions) > 0 {
		dst = append(dst, `,"dimensions":{`...)
		for i, d := range e.Dimensions {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendJSONString(dst, d.Name)
			dst = append(dst, ':')
			dst = appendJSONString(dst, d.Value)
		}
		dst = append(dst, '}')
	}
	if e.Reservation != "" {
		dst = append(dst, `,"reservation":`...)
		dst = appendJSONString(dst, e.Reservation)
	}
	if c := e.ListCost; c != nil {
		dst = append(dst, `,"list_cost":{"micros":`...)
		dst = strconv.AppendInt(dst, c.Micros, 10)
		dst = append(dst, `,"currency":`...)
		dst = appendJSONString(dst, c.Currency)
		dst = append(dst, '}')
	}
	dst = append(dst, `,"digest":"`...)
	dst = hex.AppendEncode(dst, e.Digest[:])
	dst = append(dst, `","rules":`...)
	dst = strconv.AppendInt(dst, e.RulesOffset, 10)
	dst = append(dst, `,"origin":"`...)
	dst = append(dst, e.Origin.Topic...) // topic names have no character that JSON escapes
	dst = append(dst, '/')
	dst = strconv.AppendInt(dst, int64(e.Origin.Partition), 10)
	dst = append(dst, '/')
	dst = strconv.AppendInt(dst, e.Origin.Offset, 10)
	return append(dst, '"', '}')
}

// String returns the word that the canonical form uses: usage, cancel or amend.
func (k Kind) String() string {
	switch k {
	case KindUsage:
		return "usage"
	case KindCancel:
		return "cancel"
	case KindAmend:
		return "amend"
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// Decoder decodes canonical events and remembers the strings that repeat (tenants, metrics, sources, dimensions), so
// that decoding one event costs the allocation of its id and little more. The zero value is ready. A Decoder serves one
// goroutine.
type Decoder struct {
	strings interner
	scratch []byte // the last string that had to be unescaped
}

// Decode reads a canonical record into e. It reuses e's slices, so what a caller keeps beyond the next call it
// must clone; strings may be kept. The headers may be of any type with the shape of [Header], such as kgo.RecordHeader.
// e.Key is taken from the record key; CheckKey compares it with the identity. Errors match ErrNotCanonical.
func Decode[H ~struct {
	Key   string
	Value []byte
}](d *Decoder, e *UsageEvent, key []byte, headers []H, value []byte) error {
	*e = UsageEvent{Measures: e.Measures[:0], Dimensions: e.Dimensions[:0]}
	if len(key) != len(e.Key) {
		return fmt.Errorf("%w: the record key has %d bytes, an event key has %d", ErrNotCanonical, len(key), len(e.Key))
	}
	e.Key = EventKey(key)
	var version bool
	for _, hh := range headers {
		h := Header(hh)
		switch h.Key {
		case "ce_specversion":
			version = string(h.Value) == "1.0"
		case "ce_id":
			e.ID = string(h.Value)
		case "ce_source":
			e.Source = d.strings.get(h.Value)
		case "ce_type":
			e.Type = d.strings.get(h.Value)
		case "ce_subject":
			e.Subject = d.strings.get(h.Value)
		case "ce_time":
			t, ok := parseTime(h.Value)
			if !ok {
				return fmt.Errorf("%w: header ce_time: %q is not an RFC 3339 time", ErrNotCanonical, h.Value)
			}
			e.OccurredAt = t
		case "ce_traceparent":
			e.TraceParent = string(h.Value)
		case "ce_tracestate":
			e.TraceState = string(h.Value)
		}
	}
	if !version || e.ID == "" || e.Source == "" || e.Type == "" || e.OccurredAt.IsZero() {
		return fmt.Errorf("%w: a CloudEvents header is missing (specversion 1.0, id, source, type and time are needed)", ErrNotCanonical)
	}
	s := scanner{b: value, d: d}
	s.event(e)
	if s.fault != "" {
		return fmt.Errorf("%w: value at byte %d: %s", ErrNotCanonical, s.i, s.fault)
	}
	return nil
}

// CheckKey reports whether the record key is the one that the identity demands.
func (e *UsageEvent) CheckKey() bool { return e.Key == KeyOf(e.Source, e.ID) }

// scanner reads the fixed form. After a fault every method does nothing, so the reading code has no error branches.
type scanner struct {
	b     []byte
	i     int
	d     *Decoder
	fault string
}

func (s *scanner) event(e *UsageEvent) {
	s.want(`{"tenant":`)
	e.Tenant = s.interned()
	s.want(`,"ingested_at":"`)
	e.IngestedAt = s.time()
	s.want(`"`)
	if s.take(`,"occurred_from":"ingest"`) {
		e.OccurredFromIngest = true
	}
	if s.take(`,"kind":"`) {
		switch {
		case s.take("cancel"):
			e.Kind = KindCancel
		case s.take("amend"):
			e.Kind = KindAmend
		default:
			s.fail("unknown kind")
		}
		s.want(`","target":`)
		e.Target = string(s.str())
	}
	s.want(`,"measures":[`)
	for s.fault == "" && !s.take(`]`) {
		if len(e.Measures) > 0 {
			s.want(`,`)
		}
		var m Measure
		s.want(`{"metric":`)
		m.Metric = s.interned()
		s.want(`,"units":`)
		m.Units = s.int(MaxUnits)
		if s.take(`,"scale":`) {
			if m.Scale = uint8(s.int(MaxScale)); m.Scale == 0 {
				s.fail("a scale of 0 is left out")
			}
		}
		s.want(`}`)
		e.Measures = append(e.Measures, m)
	}
	if s.take(`,"dimensions":{`) {
		for s.fault == "" && !s.take(`}`) {
			if len(e.Dimensions) > 0 {
				s.want(`,`)
			}
			var d Dimension
			d.Name = s.interned()
			s.want(`:`)
			d.Value = s.interned()
			e.Dimensions = append(e.Dimensions, d)
		}
	}
	if s.take(`,"reservation":`) {
		e.Reservation = string(s.str())
	}
	if s.take(`,"list_cost":{"micros":`) {
		e.ListCost = &ListCost{Micros: s.int(MaxUnits)}
		s.want(`,"currency":`)
		e.ListCost.Currency = s.interned()
		s.want(`}`)
	}
	s.want(`,"digest":"`)
	s.digest(&e.Digest)
	s.want(`","rules":`)
	e.RulesOffset = s.int(1<<63 - 1)
	s.want(`,"origin":`)
	s.origin(&e.Origin)
	s.want(`}`)
	if s.fault == "" && s.i != len(s.b) {
		s.fail("bytes follow the object")
	}
}

func (s *scanner) fail(why string) {
	if s.fault == "" {
		s.fault = why
	}
}

func (s *scanner) take(lit string) bool {
	if s.fault != "" || len(s.b)-s.i < len(lit) || string(s.b[s.i:s.i+len(lit)]) != lit {
		return false
	}
	s.i += len(lit)
	return true
}

func (s *scanner) want(lit string) {
	if !s.take(lit) {
		s.fail("want " + lit)
	}
}

func (s *scanner) int(most int64) int64 {
	start, end := s.i, s.i
	var n int64
	for end < len(s.b) && s.b[end]-'0' <= 9 {
		digit := int64(s.b[end] - '0')
		// Eighteen digits fit whatever they are; only a number that is longer needs to be watched.
		if end-start >= 18 && n > (math.MaxInt64-digit)/10 {
			s.fail("number too large")
			return 0
		}
		n = n*10 + digit
		end++
	}
	s.i = end
	if n > most {
		s.fail("number too large")
		return 0
	}
	if s.i == start || (s.b[start] == '0' && s.i > start+1) {
		s.fail("want a number without leading zeros")
	}
	return n
}

// str reads a JSON string as appendJSONString writes it. The result shares the value's memory, or the decoder's scratch
// buffer when an escape had to be resolved, so it is valid until the next string is read.
func (s *scanner) str() []byte {
	if s.fault != "" || s.i >= len(s.b) || s.b[s.i] != '"' {
		s.fail("want a string")
		return nil
	}
	start := s.i + 1
	for i := start; i < len(s.b); i++ {
		c := s.b[i]
		if plain[c] {
			continue
		}
		if c == '"' {
			s.i = i + 1
			return s.b[start:i]
		}
		return s.hardStr(start, i)
	}
	s.fail("unterminated string")
	return nil
}

func (s *scanner) hardStr(start, i int) []byte {
	out := append(s.d.scratch[:0], s.b[start:i]...)
	defer func() { s.d.scratch = out[:0] }()
	for i < len(s.b) {
		switch c := s.b[i]; {
		case c == '"':
			s.i = i + 1
			if !utf8.Valid(out) {
				s.fail("invalid UTF-8 in a string")
			}
			return out
		case c == '\\':
			r, size := unescape(s.b[i:])
			if want := appendEscape(make([]byte, 0, 8), byte(r)); r >= utf8.RuneSelf || size != len(want) || string(want) != string(s.b[i:i+size]) {
				s.fail("an escape that is not canonical")
				return nil
			}
			out = append(out, byte(r))
			i += size
		case c < 0x20:
			s.fail("control character in a string")
			return nil
		default:
			out = append(out, c)
			i++
		}
	}
	s.fail("unterminated string")
	return nil
}

// digest reads the hexadecimal digits of a digest, in lower case as they are written.
func (s *scanner) digest(d *Digest) {
	if s.fault != "" || len(s.b)-s.i < 2*len(d) {
		s.fail("short digest")
		return
	}
	text := s.b[s.i : s.i+2*len(d)]
	var faults byte
	for i := range d {
		hi, lo := lowerHex[text[2*i]], lowerHex[text[2*i+1]]
		d[i] = hi<<4 | lo&0xf
		faults |= hi | lo
	}
	if faults > 0xf {
		s.fail("the digest is not hexadecimal in lower case")
		return
	}
	s.i += len(text)
}

// lowerHex holds the value of each lower-case hexadecimal digit, and 0xff for every other byte.
var lowerHex = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range len(hexDigits) {
		t[hexDigits[i]] = byte(i)
	}
	return t
}()

func (s *scanner) interned() string {
	b := s.str()
	if s.fault != "" {
		return ""
	}
	return s.d.strings.get(b)
}

func (s *scanner) time() time.Time {
	if s.fault != "" || len(s.b)-s.i < len(ingestedLayout) {
		s.fail("want a time")
		return time.Time{}
	}
	text := s.b[s.i : s.i+len(ingestedLayout)]
	t, ok := parseTime(text)
	if !ok || text[len(text)-1] != 'Z' || text[19] != '.' {
		s.fail("want a time in UTC with milliseconds")
		return time.Time{}
	}
	s.i += len(ingestedLayout)
	return t
}

func (s *scanner) origin(o *Origin) {
	b := s.str()
	rest, offset, ok := cutLast(b, '/')
	topic, partition, ok2 := cutLast(rest, '/')
	if !ok || !ok2 {
		s.fail("want topic/partition/offset")
		return
	}
	p, ok := plainInt(partition, 1<<31-1)
	off, ok2 := plainInt(offset, 1<<63-1)
	if !ok || !ok2 {
		s.fail("want topic/partition/offset")
		return
	}
	o.Topic, o.Partition, o.Offset = s.d.strings.get(topic), int32(p), off
}

// plainInt reads all of b as a number in [0, most] without leading zeros.
func plainInt(b []byte, most int64) (int64, bool) {
	s := scanner{b: b}
	n := s.int(most)
	return n, s.fault == "" && s.i == len(b)
}

func cutLast(b []byte, sep byte) (before, after []byte, found bool) {
	i := bytes.LastIndexByte(b, sep)
	if i < 0 {
		return b, nil, false
	}
	return b[:i], b[i+1:], true
}

const hexDigits = "0123456789abcdef"

// appendJSONString appends s as a JSON string. Text that is valid UTF-8 without control characters, quotes and backslashes
// is copied as it is; invalid UTF-8 becomes U+FFFD, which the enricher has refused before.
func appendJSONString(dst []byte, s string) []byte {
	i := 0
	for i < len(s) && plain[s[i]] {
		i++
	}
	dst = append(dst, '"')
	if i == len(s) {
		dst = append(dst, s...)
		return append(dst, '"')
	}
	start := 0
	for i < len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(dst, s[start:i]...)
				dst = append(dst, "\ufffd"...)
				start = i + 1
			}
			i += size
			continue
		}
		dst = append(dst, s[start:i]...)
		dst = appendEscape(dst, c)
		i++
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

func appendEscape(dst []byte, c byte) []byte {
	if c == '"' || c == '\\' {
		return append(dst, '\\', c)
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}
