package schemas

import (
	"bytes"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonReader reads JSON in a single pass: it builds no tree and recurses into nothing, because it knows
// every object that an event may hold. Deep nesting therefore ends at the first level that has no business there.
type jsonReader struct {
	reading
	b []byte
	i int
}

func (p *jsonReader) malformed(format string, args ...any) {
	if p.refusal == nil {
		p.refuse(ReasonMalformed, "", "at byte %d: %s", p.i, fmt.Sprintf(format, args...))
	}
}

func (p *jsonReader) space() {
	for p.i < len(p.b) {
		switch p.b[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

// open reads the opening bracket, or says what stands in its place.
func (p *jsonReader) open(bracket byte, field, want string) bool {
	if p.refusal != nil {
		return false
	}
	p.space()
	if p.i < len(p.b) && p.b[p.i] == bracket {
		p.i++
		return true
	}
	reason := ReasonInvalidData
	if field == "" {
		reason = ReasonMalformed
	}
	p.refuse(reason, field, "%s", want)
	return false
}

// more reports whether another element follows the n that were read, and reads the comma or the closing bracket.
func (p *jsonReader) more(bracket byte, n int) bool {
	if p.refusal != nil {
		return false
	}
	p.space()
	switch {
	case p.i >= len(p.b):
		p.malformed("the text ends inside an object or a list")
		return false
	case p.b[p.i] == bracket:
		p.i++
		return false
	case n == 0:
		return true
	case p.b[p.i] == ',':
		p.i++
		return true
	}
	p.malformed("want a comma or %q", bracket)
	return false
}

// name reads a member's name and the colon.
func (p *jsonReader) name() []byte {
	p.space()
	if p.i >= len(p.b) || p.b[p.i] != '"' {
		p.malformed("want the name of a member in quotes")
		return nil
	}
	name, kind := p.str()
	if kind == valueText {
		name = bytes.Clone(name) // the value's string would overwrite it
	}
	p.space()
	if p.refusal == nil && (p.i >= len(p.b) || p.b[p.i] != ':') {
		p.malformed("want a colon after the name of a member")
		return nil
	}
	p.i++
	p.space()
	return name
}

// member reads on to the next member's value, after n members of the object were read, and returns the member's name.
// ok is false at the end of the object and after a refusal.
func (p *jsonReader) member(n int) (name []byte, ok bool) {
	if !p.more('}', n) {
		return nil, false
	}
	name = p.name()
	return name, p.refusal == nil
}

// plain marks the bytes that a JSON string may hold as they are and that no rule of ours looks at.
var plain = func() (t [256]bool) {
	for c := 0x20; c < 0x7f; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// str reads a string at its opening quote. The result shares the text's memory, or the scratch buffer's when an escape had
// to be resolved, so it is valid until the next string is read. The kind says whether it is printable ASCII only.
func (p *jsonReader) str() ([]byte, valueKind) {
	start := p.i + 1
	for i := start; i < len(p.b); i++ {
		c := p.b[i]
		if plain[c] {
			continue
		}
		if c == '"' {
			p.i = i + 1
			return p.b[start:i], valueChecked
		}
		return p.hardStr(start, i), valueText
	}
	p.i = len(p.b)
	p.malformed("the text ends inside a string")
	return nil, valueText
}

// hardStr reads a string that holds an escape, a control character or bytes beyond ASCII from position i on.
func (p *jsonReader) hardStr(start, i int) []byte {
	out := append(p.in.scratch[:0], p.b[start:i]...)
	defer func() { p.in.scratch = out[:0] }()
	for i < len(p.b) {
		c := p.b[i]
		switch {
		case c == '"':
			p.i = i + 1
			return out
		case c == '\\':
			r, size := unescape(p.b[i:])
			if size == 0 {
				p.i = i
				p.malformed("bad escape, or half of a surrogate pair")
				return nil
			}
			out = utf8.AppendRune(out, r)
			i += size
		case c < 0x20:
			p.i = i
			p.malformed("a control character stands unescaped in a string")
			return nil
		case c < utf8.RuneSelf:
			out = append(out, c)
			i++
		default:
			r, size := utf8.DecodeRune(p.b[i:])
			if r == utf8.RuneError && size == 1 {
				p.i = i
				p.malformed("invalid UTF-8")
				return nil
			}
			out = append(out, p.b[i:i+size]...)
			i += size
		}
	}
	p.i = len(p.b)
	p.malformed("the text ends inside a string")
	return nil
}

// unescape reads the escape at the start of b, which begins with a backslash. Its size is 0 when there is none.
func unescape(b []byte) (r rune, size int) {
	if len(b) < 2 {
		return 0, 0
	}
	switch b[1] {
	case '"', '\\', '/':
		return rune(b[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		r = hex4(b[2:])
		switch {
		case r < 0:
			return 0, 0
		case !utf16.IsSurrogate(r):
			return r, 6
		case len(b) >= 12 && b[6] == '\\' && b[7] == 'u':
			if r = utf16.DecodeRune(r, hex4(b[8:])); r != utf8.RuneError {
				return r, 12
			}
		}
	}
	return 0, 0
}

func hex4(b []byte) rune {
	if len(b) < 4 {
		return -1
	}
	var r rune
	for _, c := range b[:4] {
		d, ok := hexDigit(c)
		if !ok {
			return -1
		}
		r = r<<4 | rune(d)
	}
	return r
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// number reads a JSON number and returns its text.
func (p *jsonReader) number() []byte {
	start := p.i
	if p.i < len(p.b) && p.b[p.i] == '-' {
		p.i++
	}
	switch first := p.i; {
	case p.digits() == 0:
		p.malformed("want a digit")
	case p.b[first] == '0' && p.i > first+1:
		p.malformed("a number has leading zeros")
	}
	if p.i < len(p.b) && p.b[p.i] == '.' {
		p.i++
		if p.digits() == 0 {
			p.malformed("want a digit after the point")
		}
	}
	if p.i < len(p.b) && (p.b[p.i] == 'e' || p.b[p.i] == 'E') {
		p.i++
		if p.i < len(p.b) && (p.b[p.i] == '+' || p.b[p.i] == '-') {
			p.i++
		}
		if p.digits() == 0 {
			p.malformed("want a digit in the exponent")
		}
	}
	return p.b[start:p.i]
}

func (p *jsonReader) digits() (n int) {
	for p.i < len(p.b) && p.b[p.i] >= '0' && p.b[p.i] <= '9' {
		p.i++
		n++
	}
	return n
}

// scalar reads a string, a number, true, false or null. At an object or a list it reads nothing and
// says valueNested, which no member of ours that takes a scalar accepts.
func (p *jsonReader) scalar() ([]byte, valueKind) {
	if p.refusal != nil {
		return nil, valueNull
	}
	if p.i >= len(p.b) {
		p.malformed("the text ends where a value should stand")
		return nil, valueNull
	}
	switch c := p.b[p.i]; {
	case c == '"':
		return p.str()
	case c == '-' || c >= '0' && c <= '9':
		return p.number(), valueNumber
	case c == '{' || c == '[':
		return nil, valueNested
	case p.literal("true"):
		return []byte("true"), valueBool
	case p.literal("false"):
		return []byte("false"), valueBool
	case p.literal("null"):
		return nil, valueNull
	}
	p.malformed("want a value")
	return nil, valueNull
}

func (p *jsonReader) literal(word string) bool {
	if len(p.b)-p.i < len(word) || string(p.b[p.i:p.i+len(word)]) != word {
		return false
	}
	p.i += len(word)
	return true
}

// skipValue passes over one value of any kind. It counts brackets instead of recursing, so depth costs nothing; it
// does not match their kinds, which ParseStructured does.
func (p *jsonReader) skipValue() {
	for depth := 0; p.refusal == nil; {
		p.space()
		if p.i >= len(p.b) {
			p.malformed("the text ends inside a value")
			return
		}
		switch c := p.b[p.i]; c {
		case '{', '[':
			depth++
			p.i++
		case '}', ']':
			if depth--; depth < 0 {
				p.malformed("want a value")
				return
			}
			p.i++
		case '"':
			p.str()
		case ',', ':':
			if depth == 0 {
				p.malformed("want a value")
				return
			}
			p.i++
			continue // no value yet
		default:
			start := p.i
			for p.i < len(p.b) && !bytes.ContainsRune([]byte(" \t\r\n,:[]{}\""), rune(p.b[p.i])) {
				p.i++
			}
			if p.i == start {
				p.malformed("want a value")
				return
			}
		}
		if depth == 0 {
			return
		}
	}
}

// end refuses what follows the value.
func (p *jsonReader) end() {
	if p.refusal != nil {
		return
	}
	p.space()
	if p.i < len(p.b) {
		p.malformed("bytes follow the JSON value")
	}
}
