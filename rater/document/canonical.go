package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
)

// Canonical returns v in the one form that hashes and comparisons are made of: RFC 8785's, restricted to objects, arrays,
// strings, booleans, null and whole numbers below 2^53. Members are in the order of their names, without
// white space, strings escaped only where JSON must. The bytes depend on the values alone, not on the version of a JSON library.
func Canonical(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode a document: %w", err)
	}
	return Canonicalise(text)
}

// Canonicalise returns a JSON text in canonical form.
func Canonicalise(text []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("read a JSON text: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("read a JSON text: something follows it")
	}
	return appendCanonical(make([]byte, 0, len(text)), v)
}

func appendCanonical(dst []byte, v any) ([]byte, error) {
	var err error
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case string:
		return appendString(dst, v), nil
	case json.Number:
		n, err := strconv.ParseInt(v.String(), 10, 64)
		if err != nil || n > 1<<53-1 || n < -(1<<53-1) || strconv.FormatInt(n, 10) != v.String() {
			return nil, fmt.Errorf("number %s in a document: only whole numbers below 2^53 are canonical, write others as text", v)
		}
		return append(dst, v...), nil
	case []any:
		dst = append(dst, '[')
		for i, e := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = appendCanonical(dst, e); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	case map[string]any:
		dst = append(dst, '{')
		// Names here are ASCII or user-given text; RFC 8785 sorts by UTF-16 units, which differs from bytes beyond the basic
		// plane only, so those are compared as it says.
		for i, name := range slices.SortedFunc(maps.Keys(v), compareUTF16) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendString(dst, name), ':')
			if dst, err = appendCanonical(dst, v[name]); err != nil {
				return nil, err
			}
		}
		return append(dst, '}'), nil
	}
	return nil, fmt.Errorf("a %T in a document", v)
}

func compareUTF16(a, b string) int {
	ra, rb := []rune(a), []rune(b)
	for i := range min(len(ra), len(rb)) {
		x, y := ra[i], rb[i]
		if x == y {
			continue
		}
		// A rune beyond the basic plane begins with a surrogate, 0xD800 to 0xDBFF.
		lead := func(r rune) rune {
			if r > 0xFFFF {
				return 0xD800 + (r-0x10000)>>10
			}
			return r
		}
		if lead(x) != lead(y) {
			return int(lead(x) - lead(y))
		}
		return int(x - y)
	}
	return len(ra) - len(rb)
}

func appendString(dst []byte, s string) []byte {
	const hexDigits = "0123456789abcdef"
	dst = append(dst, '"')
	for i := range len(s) {
		switch c := s[i]; c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, `\b`...)
		case '\t':
			dst = append(dst, `\t`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\r':
			dst = append(dst, `\r`...)
		default:
			if c < 0x20 {
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			} else {
				dst = append(dst, c)
			}
		}
	}
	return append(dst, '"')
}
