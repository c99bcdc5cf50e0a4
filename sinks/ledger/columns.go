package ledger

import (
	"encoding/binary"
	"math"
	"math/bits"
	"time"

	"github.com/ClickHouse/ch-go/proto"

	"github.com/kanjo-dev/kanjo/schemas"
)

// lowCard is a LowCardinality(String) column that builds its dictionary while values are appended. Values that repeat come
// from a Decoder that interns them, so the comparison with the last value is usually of two pointers.
type lowCard struct {
	keys   []uint32
	codes  map[string]uint32
	dict   proto.ColStr
	last   string
	lastID uint32
}

func (c *lowCard) Append(s string) {
	if len(c.keys) > 0 && s == c.last {
		c.keys = append(c.keys, c.lastID)
		return
	}
	id, ok := c.codes[s]
	if !ok {
		if c.codes == nil {
			c.codes = make(map[string]uint32)
		}
		id = uint32(c.dict.Rows())
		c.codes[s] = id
		c.dict.Append(s)
	}
	c.last, c.lastID = s, id
	c.keys = append(c.keys, id)
}

func (c *lowCard) Reset() {
	c.keys = c.keys[:0]
	clear(c.codes)
	c.dict.Reset()
	c.last, c.lastID = "", 0
}

func (c *lowCard) Type() proto.ColumnType { return "LowCardinality(String)" }
func (c *lowCard) Rows() int              { return len(c.keys) }

// The serialisation of LowCardinality in the Native format: its version before the column, then flags with the width of a
// key, the dictionary, the keys.
const (
	lowCardVersion        = 1
	lowCardAdditionalKeys = 1 << 9
	lowCardUpdate         = 1 << 10
)

func (c *lowCard) EncodeState(b *proto.Buffer) { b.PutInt64(lowCardVersion) }

func (c *lowCard) EncodeColumn(b *proto.Buffer) {
	if len(c.keys) == 0 {
		return // An empty column has neither flags nor dictionary; so the keys of maps that are all empty.
	}
	const wide8, wide16, wide32 = 0, 1, 2
	n := c.dict.Rows()
	width := int64(wide32)
	switch {
	case n <= math.MaxUint8+1:
		width = wide8
	case n <= math.MaxUint16+1:
		width = wide16
	}
	b.PutInt64(width | lowCardAdditionalKeys | lowCardUpdate)
	b.PutInt64(int64(n))
	c.dict.EncodeColumn(b)
	b.PutInt64(int64(len(c.keys)))
	switch width {
	case wide8:
		for _, k := range c.keys {
			b.Buf = append(b.Buf, byte(k))
		}
	case wide16:
		for _, k := range c.keys {
			b.Buf = binary.LittleEndian.AppendUint16(b.Buf, uint16(k))
		}
	default:
		for _, k := range c.keys {
			b.Buf = binary.LittleEndian.AppendUint32(b.Buf, k)
		}
	}
}

func (c *lowCard) WriteColumn(w *proto.Writer) { w.ChainBuffer(c.EncodeColumn) }

// stringMap is a Map(LowCardinality(String), String) column.
type stringMap struct {
	ends   proto.ColUInt64
	keys   lowCard
	values proto.ColStr
}

func (c *stringMap) Append(dims []schemas.Dimension) {
	for _, d := range dims {
		c.keys.Append(d.Name)
		c.values.Append(d.Value)
	}
	c.ends = append(c.ends, uint64(c.values.Rows()))
}

func (c *stringMap) Reset() {
	c.ends = c.ends[:0]
	c.keys.Reset()
	c.values.Reset()
}

func (c *stringMap) Type() proto.ColumnType      { return "Map(LowCardinality(String), String)" }
func (c *stringMap) Rows() int                   { return len(c.ends) }
func (c *stringMap) EncodeState(b *proto.Buffer) { c.keys.EncodeState(b) }
func (c *stringMap) EncodeColumn(b *proto.Buffer) {
	c.ends.EncodeColumn(b)
	c.keys.EncodeColumn(b)
	c.values.EncodeColumn(b)
}
func (c *stringMap) WriteColumn(w *proto.Writer) { w.ChainBuffer(c.EncodeColumn) }

// list is an Array column over any column.
type list[C proto.ColInput] struct {
	ends proto.ColUInt64
	of   C
}

// end closes the row whose elements were appended to of.
func (c *list[C]) end() { c.ends = append(c.ends, uint64(c.of.Rows())) }

func (c *list[C]) Reset() {
	c.ends = c.ends[:0]
	if r, ok := any(c.of).(proto.Resettable); ok {
		r.Reset()
	}
}

func (c *list[C]) Type() proto.ColumnType { return proto.ColumnTypeArray.Sub(c.of.Type()) }
func (c *list[C]) Rows() int              { return len(c.ends) }
func (c *list[C]) EncodeState(b *proto.Buffer) {
	if s, ok := any(c.of).(proto.StateEncoder); ok {
		s.EncodeState(b)
	}
}
func (c *list[C]) EncodeColumn(b *proto.Buffer) {
	c.ends.EncodeColumn(b)
	c.of.EncodeColumn(b)
}
func (c *list[C]) WriteColumn(w *proto.Writer) { w.ChainBuffer(c.EncodeColumn) }

// kindColumn is the Enum8 of schemas.Kind.
type kindColumn struct{ proto.ColEnum8 }

func (c *kindColumn) Type() proto.ColumnType { return "Enum8('usage' = 0, 'cancel' = 1, 'amend' = 2)" }

// decimalColumn is a Decimal(38, 9).
type decimalColumn struct{ proto.ColDecimal128 }

func (c *decimalColumn) Type() proto.ColumnType { return "Decimal(38, 9)" }

var powersOfTen = [schemas.MaxScale + 1]uint64{1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000}

// quantityOf returns units / 10^scale as a decimal with nine digits behind the point. It is exact: units are at most
// 2^53-1 and not negative, so the result has at most 83 bits.
func quantityOf(units int64, scale uint8) proto.Decimal128 {
	high, low := bits.Mul64(uint64(units), powersOfTen[schemas.MaxScale-scale])
	return proto.Decimal128{Low: low, High: high}
}

func newMillis() *proto.ColDateTime64 {
	return new(proto.ColDateTime64).WithPrecision(proto.PrecisionMilli).WithLocation(time.UTC)
}

func newNanos() *proto.ColDateTime64 {
	return new(proto.ColDateTime64).WithPrecision(proto.PrecisionNano).WithLocation(time.UTC)
}

func appendMillis(c *proto.ColDateTime64, t time.Time) {
	c.Data = append(c.Data, proto.DateTime64(t.UnixMilli()))
}

// The instants that a DateTime64(9) holds and that have a month of their own in a partition key.
var (
	nanosMin = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	nanosMax = time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC)
)

// fill appends v to a column until it has n rows.
func fill[T any, C interface {
	Rows() int
	Append(T)
}](c C, n int, v T) {
	for c.Rows() < n {
		c.Append(v)
	}
}
