package chdb

import (
	"bytes"
	"errors"
	"math/big"
	"testing"
	"time"

	chproto "github.com/ClickHouse/ch-go/proto"
	"github.com/ClickHouse/clickhouse-go/v2/lib/column"
	"github.com/ClickHouse/clickhouse-go/v2/lib/proto"
)

// nativeBlock encodes a block of one column for revision 0, as the engine does.
func nativeBlock(tb testing.TB, typ string, values ...any) []byte {
	tb.Helper()
	block := proto.NewBlock()
	if err := block.AddColumn("c", column.Type(typ)); err != nil {
		tb.Fatal(err)
	}
	if err := block.AddColumn("after", "UInt16"); err != nil {
		tb.Fatal(err)
	}
	for i, v := range values {
		if err := block.Append(v, uint16(i)); err != nil {
			tb.Fatal(typ, err)
		}
	}
	var b chproto.Buffer
	if err := block.Encode(&b, 0); err != nil {
		tb.Fatal(err)
	}
	return b.Buf
}

func nativeBlocks(tb testing.TB) [][]byte {
	long := string(bytes.Repeat([]byte("x"), 300))
	return [][]byte{
		nativeBlock(tb, "String", "", "a", long),
		nativeBlock(tb, "FixedString(3)", "abc", "def"),
		nativeBlock(tb, "UInt64", uint64(1)),
		nativeBlock(tb, "Int256", big.NewInt(-1)),
		nativeBlock(tb, "Bool", true, false),
		nativeBlock(tb, "Date", time.Unix(0, 0)),
		nativeBlock(tb, "DateTime64(9, 'UTC')", time.Unix(0, 0)),
		nativeBlock(tb, "DateTime('Asia/Tokyo')", time.Unix(0, 0)),
		nativeBlock(tb, "Enum8('a,(' = 1, 'b' = 2)", "a,(", "b"),
		nativeBlock(tb, "LowCardinality(String)", "a", "b", "a"),
		nativeBlock(tb, "LowCardinality(Nullable(FixedString(2)))", "ab", nil),
		nativeBlock(tb, "Array(LowCardinality(String))", []string{}, []string{"a"}),
		nativeBlock(tb, "Array(LowCardinality(String))", []string{}, []string{}),
		nativeBlock(tb, "Map(LowCardinality(String), Array(String))", map[string][]string{"a": {"b", ""}}, map[string][]string{}),
		nativeBlock(tb, "Tuple(LowCardinality(String), b Nullable(UInt8), c Array(UInt8))", []any{"a", nil, []uint8{1, 2}}),
		nativeBlock(tb, "Nullable(String)", nil, "a"),
		nativeBlock(tb, "UUID", "00000000-0000-0000-0000-000000000001"),
		nativeBlock(tb, "String"), // no rows
	}
}

// The quick way, which copies columns, gives the bytes that clickhouse-go itself would write.
func TestNativeForARevisionIsWhatClickhouseGoWrites(t *testing.T) {
	for _, revision := range []uint64{0, 50000, proto.DBMS_MIN_REVISION_WITH_CUSTOM_SERIALIZATION, proto.DBMS_TCP_PROTOCOL_VERSION} {
		var all, want bytes.Buffer
		for _, src := range nativeBlocks(t) {
			var got bytes.Buffer
			if err := writeNative(&got, src, revision); err != nil {
				t.Fatalf("revision %d: %v", revision, err)
			}
			all.Write(src)
			from := want.Len()
			if err := recodeNative(&want, src, revision); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), want.Bytes()[from:]) {
				t.Errorf("revision %d: %q became %q, want %q", revision, src, got.Bytes(), want.Bytes()[from:])
			}
		}
		var got bytes.Buffer
		if err := writeNative(&got, all.Bytes(), revision); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("revision %d: all blocks in one piece come out differently", revision)
		}
	}
}

func TestATypeOfUnknownLayoutIsDecoded(t *testing.T) {
	point := append([]byte("\x01\x01\x01c\x05Point"), make([]byte, 16)...)
	if _, err := writeBlock(new(bytes.Buffer), point, 1); !errors.Is(err, errUnmeasured) {
		t.Fatalf("Point is measured (%v): take another type for this test", err)
	}
	src := append(nativeBlock(t, "String", "a"), point...)
	var got, want bytes.Buffer
	if err := writeNative(&got, src, proto.DBMS_TCP_PROTOCOL_VERSION); err != nil {
		t.Fatal(err)
	}
	if err := recodeNative(&want, src, proto.DBMS_TCP_PROTOCOL_VERSION); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("got %q, want %q", got.Bytes(), want.Bytes())
	}
}

func TestTupleElementsMayHaveNames(t *testing.T) {
	check := func(element, want string) {
		t.Helper()
		if got := unnamed(element); got != want {
			t.Errorf("%s: got %s, want %s", element, got, want)
		}
	}
	check("String", "String")
	check("Decimal(38, 9)", "Decimal(38, 9)")
	check("n UInt64", "UInt64")
	check("`odd (name` Array(Tuple(a String))", "Array(Tuple(a String))")
}

// FuzzNative: no bytes make it panic or loop, and none are lost.
func FuzzNative(f *testing.F) {
	for _, b := range nativeBlocks(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		var out bytes.Buffer
		n, err := writeBlock(&out, src, proto.DBMS_TCP_PROTOCOL_VERSION)
		if err == nil && (n <= 0 || n > len(src) || out.Len() < n) {
			t.Errorf("read %d of %d bytes, wrote %d", n, len(src), out.Len())
		}
	})
}
