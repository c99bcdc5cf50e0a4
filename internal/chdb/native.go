package chdb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	chproto "github.com/ClickHouse/ch-go/proto"

	"github.com/ClickHouse/clickhouse-go/v2/lib/proto"
)

// The engine writes Native blocks for protocol revision 0; a client that names a revision (client_protocol_version)
// reads blocks of that revision. Up to the highest revision that clickhouse-go knows they differ in two things only:
// a block begins with its block info, and each column says behind its type whether it is serialised in a custom way
// (it never is). So the column's bytes are copied as they are, once it is known how many there are; that depends on
// the type, which measure walks over.

// writeNative writes the blocks in src, which are of revision 0, for the given revision.
func writeNative(w io.Writer, src []byte, revision uint64) error {
	if revision == 0 {
		_, err := w.Write(src)
		return err
	}
	for len(src) > 0 {
		n, err := writeBlock(w, src, revision)
		if errors.Is(err, errUnmeasured) {
			return recodeNative(w, src, revision)
		}
		if err != nil {
			return err
		}
		src = src[n:]
	}
	return nil
}

// blockInfo is: field 1, not an overflow block; field 2, no bucket; end.
var blockInfo = []byte{1, 0, 2, 0xff, 0xff, 0xff, 0xff, 0}

func writeBlock(w io.Writer, src []byte, revision uint64) (read int, err error) {
	m := measurer{src: src}
	columns, rows := m.uvarint(), m.uvarint()
	// Where the columns end, and where the byte goes that each column has more: measure all before writing any.
	type span struct{ head, end int }
	spans := make([]span, 0, min(columns, 1000))
	for range columns {
		m.str()
		typ := m.str()
		head := m.off
		if rows > 0 {
			m.skip(8 * prefixes(typ))
			m.column(typ, rows)
		}
		if m.err != nil {
			return 0, m.err
		}
		spans = append(spans, span{head, m.off})
	}
	if m.err != nil {
		return 0, m.err
	}
	if _, err := w.Write(blockInfo); err != nil {
		return 0, err
	}
	from := 0
	for _, s := range spans {
		if _, err := w.Write(src[from:s.head]); err != nil {
			return 0, err
		}
		if revision >= proto.DBMS_MIN_REVISION_WITH_CUSTOM_SERIALIZATION {
			if _, err := w.Write([]byte{0}); err != nil {
				return 0, err
			}
		}
		if _, err := w.Write(src[s.head:s.end]); err != nil {
			return 0, err
		}
		from = s.end
	}
	if len(spans) == 0 {
		_, err = w.Write(src[:m.off])
	}
	return m.off, err
}

// recodeNative does the same through clickhouse-go's own decoder, which knows types that measure does not.
func recodeNative(w io.Writer, src []byte, revision uint64) error {
	reader := chproto.NewReader(bytes.NewReader(src))
	for {
		block := proto.NewBlock()
		if err := block.Decode(reader, 0); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("decode a block of the engine: %w", err)
		}
		var out chproto.Buffer
		if err := block.Encode(&out, revision); err != nil {
			return fmt.Errorf("encode a block for revision %d: %w", revision, err)
		}
		if _, err := w.Write(out.Buf); err != nil {
			return err
		}
	}
}

var (
	errUnmeasured = errors.New("a type of unknown layout")
	errTruncated  = errors.New("a Native block ends early")
)

// measurer walks over the bytes of a block. The first error stays.
type measurer struct {
	src []byte
	off int
	err error
}

func (m *measurer) skip(n int) {
	if m.err != nil {
		return
	}
	if n < 0 || n > len(m.src)-m.off {
		m.err = errTruncated
		return
	}
	m.off += n
}

func (m *measurer) uvarint() int {
	if m.err != nil {
		return 0
	}
	v, n := binary.Uvarint(m.src[m.off:])
	if n <= 0 || v > 1<<40 {
		m.err = errTruncated
		return 0
	}
	m.off += n
	return int(v)
}

func (m *measurer) uint64() int {
	from := m.off
	m.skip(8)
	if m.err != nil {
		return 0
	}
	return int(binary.LittleEndian.Uint64(m.src[from:]))
}

func (m *measurer) str() string {
	n := m.uvarint()
	from := m.off
	m.skip(n)
	if m.err != nil {
		return ""
	}
	return string(m.src[from:m.off])
}

// column steps over rows values of a type.
func (m *measurer) column(typ string, rows int) {
	if m.err != nil {
		return
	}
	if w := widths[typ]; w > 0 {
		m.skip(w * rows)
		return
	}
	if typ == "String" {
		m.strings(rows)
		return
	}
	name, args := split(typ)
	switch {
	case name == "FixedString" && len(args) == 1:
		n, err := strconv.Atoi(args[0])
		if err != nil {
			m.err = errUnmeasured
			return
		}
		m.skip(n * rows)
	case name == "Decimal" && len(args) == 2:
		precision, err := strconv.Atoi(args[0])
		if err != nil {
			m.err = errUnmeasured
			return
		}
		m.skip(decimalWidth(precision) * rows)
	case (name == "DateTime64" || name == "DateTime" || name == "Enum8" || name == "Enum16") && len(args) > 0:
		m.skip(widths[name] * rows)
	case name == "Nullable" && len(args) == 1:
		m.skip(rows)
		m.column(args[0], rows)
	case name == "Array" && len(args) == 1:
		m.column(args[0], m.offsets(rows))
	case name == "Map" && len(args) == 2:
		n := m.offsets(rows)
		m.column(args[0], n)
		m.column(args[1], n)
	case name == "Tuple" && len(args) > 0:
		for _, arg := range args {
			m.column(unnamed(arg), rows)
		}
	case name == "LowCardinality" && len(args) == 1:
		m.dictionary(args[0], rows)
	case strings.HasPrefix(name, "Interval"):
		m.skip(8 * rows)
	case name == "SimpleAggregateFunction" && len(args) == 2:
		m.column(args[1], rows)
	default:
		m.err = errUnmeasured
	}
}

func (m *measurer) strings(rows int) {
	off := m.off
	for range rows {
		// Most strings are shorter than 128 bytes.
		if off < len(m.src) && m.src[off] < 0x80 {
			off += 1 + int(m.src[off])
			continue
		}
		v, n := binary.Uvarint(m.src[min(off, len(m.src)):])
		if n <= 0 || v > uint64(len(m.src)) {
			m.err = errTruncated
			return
		}
		off += n + int(v)
	}
	if off > len(m.src) {
		m.err = errTruncated
		return
	}
	m.off = off
}

// offsets steps over the offsets of an array and returns the number of its elements.
func (m *measurer) offsets(rows int) int {
	if rows == 0 {
		return 0
	}
	m.skip(8 * (rows - 1))
	return m.uint64()
}

// dictionary steps over a LowCardinality column: flags, dictionary, indexes.
func (m *measurer) dictionary(of string, rows int) {
	if rows == 0 {
		return
	}
	const additionalKeys, globalDictionary = 1 << 9, 1 << 8
	flags := m.uint64()
	if m.err != nil {
		return
	}
	width, known := map[int]int{0: 1, 1: 2, 2: 4, 3: 8}[flags&0xff]
	if !known || flags&globalDictionary != 0 || flags&additionalKeys == 0 {
		m.err = errUnmeasured
		return
	}
	if name, args := split(of); name == "Nullable" && len(args) == 1 {
		of = args[0] // NULL is the dictionary's first key, there is no mask.
	}
	m.column(of, m.uint64())
	m.skip(width * m.uint64())
}

var widths = map[string]int{
	"UInt8": 1, "UInt16": 2, "UInt32": 4, "UInt64": 8, "UInt128": 16, "UInt256": 32,
	"Int8": 1, "Int16": 2, "Int32": 4, "Int64": 8, "Int128": 16, "Int256": 32,
	"Float32": 4, "Float64": 8, "BFloat16": 2, "Bool": 1, "UUID": 16, "IPv4": 4, "IPv6": 16, "Nothing": 1,
	"Date": 2, "Date32": 4, "DateTime": 4, "DateTime64": 8, "Enum8": 1, "Enum16": 2,
}

func decimalWidth(precision int) int {
	switch {
	case precision <= 9:
		return 4
	case precision <= 18:
		return 8
	case precision <= 38:
		return 16
	default:
		return 32
	}
}

// prefixes is the number of LowCardinality columns inside a type: each has 8 bytes in front of the whole column.
func prefixes(typ string) int { return strings.Count(typ, "LowCardinality(") }

// split takes "Name(a, b(c, d))" apart into Name and its arguments.
func split(typ string) (name string, args []string) {
	open := strings.IndexByte(typ, '(')
	if open < 0 || !strings.HasSuffix(typ, ")") {
		return typ, nil
	}
	name = typ[:open]
	inner := typ[open+1 : len(typ)-1]
	depth, from := 0, 0
	for t := (tokens{text: inner}); t.next(); {
		switch t.token {
		case "(":
			depth++
		case ")":
			depth--
		case ",":
			if depth == 0 {
				args = append(args, strings.TrimSpace(inner[from:t.start]))
				from = t.end
			}
		}
	}
	return name, append(args, strings.TrimSpace(inner[from:]))
}

// unnamed is the type of a tuple's element: "name Type" or "Type".
func unnamed(element string) string {
	t := tokens{text: element}
	t.next()
	if rest := strings.TrimSpace(element[t.end:]); rest != "" && rest[0] != '(' {
		return rest
	}
	return element
}
