package controlplane

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Position is a place in a file, counted from 1.
type Position struct{ Line, Column int }

// decoder reads YAML nodes into the types of schemas/control by their JSON names, strictly: an unknown field, a field given
// twice and a value of another type are problems, each at its place. Scalars are read by their text, never through a float.
type decoder struct {
	file     string
	problems *Problems
	at       map[string]Position // where each field that is present stands
	unknown  bool                // a field has a name that there is not
}

func (d *decoder) problem(n ast.Node, field, format string, args ...any) {
	p := Problem{File: d.file, Field: field, Message: fmt.Sprintf(format, args...)}
	if pos := position(n); pos.Line > 0 {
		p.Line, p.Column = pos.Line, pos.Column
	}
	*d.problems = append(*d.problems, p)
}

func position(n ast.Node) Position {
	if n == nil {
		return Position{}
	}
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 && !m.IsFlowStyle {
		n = m.Values[0]
	}
	if mv, ok := n.(*ast.MappingValueNode); ok {
		n = mv.Key
	}
	t := n.GetToken()
	if t == nil || t.Position == nil {
		return Position{}
	}
	return Position{t.Position.Line, t.Position.Column}
}

type pair struct {
	key   string
	node  ast.Node // of the key
	value ast.Node
}

// pairs returns the entries of a mapping, each key once.
func (d *decoder) pairs(n ast.Node, field string) ([]pair, bool) {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		d.problem(n, field, "want a mapping (name: value), got %s", describe(n))
		return nil, false
	}
	var out []pair
	seen := make(map[string]Position)
	for _, v := range values {
		key, ok := v.Key.(ast.Node).(*ast.StringNode)
		if !ok {
			d.problem(v.Key, field, "want a plain field name, got %s", describe(v.Key))
			continue
		}
		if first, dup := seen[key.Value]; dup {
			d.problem(key, join(field, key.Value), "given twice; the first is on line %d", first.Line)
			continue
		}
		seen[key.Value] = position(key)
		out = append(out, pair{key.Value, key, v.Value})
	}
	return out, true
}

func join(path, field string) string {
	if path == "" {
		return field
	}
	return path + "." + field
}

// describe names a node as its author would.
func describe(n ast.Node) string {
	switch n := n.(type) {
	case nil:
		return "nothing"
	case *ast.NullNode:
		return "nothing"
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "the number " + n.GetToken().Value
	case *ast.BoolNode:
		return n.GetToken().Value
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return "a YAML anchor, alias or merge, which control documents do not use"
	case *ast.TagNode:
		return "a YAML tag, which control documents do not use"
	}
	return "something else"
}

// scalar returns the text of a scalar node.
func scalar(n ast.Node) (text string, ok bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode:
		return n.GetToken().Value, true
	}
	return "", false
}

var (
	timeType    = reflect.TypeFor[time.Time]()
	rawType     = reflect.TypeFor[json.RawMessage]()
	textDecoder = reflect.TypeFor[encoding.TextUnmarshaler]()
	jsonDecoder = reflect.TypeFor[json.Unmarshaler]()
)

// value reads n into v, which is settable. field is the path for problems.
func (d *decoder) value(n ast.Node, v reflect.Value, field string) {
	if d.at != nil {
		d.at[field] = position(n)
	}
	t := v.Type()
	switch {
	case t.Kind() == reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		d.value(n, v.Elem(), field)
		return
	case t == rawType:
		if raw, ok := d.json(nil, n, field); ok {
			v.SetBytes(raw)
		}
		return
	case t == timeType:
		d.time(n, v, field)
		return
	case reflect.PointerTo(t).Implements(textDecoder):
		text, ok := scalar(n)
		if !ok {
			d.problem(n, field, "want text, got %s", describe(n))
			return
		}
		if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)); err != nil {
			d.problem(n, field, "%v", err)
		}
		return
	case reflect.PointerTo(t).Implements(jsonDecoder):
		raw, ok := d.json(nil, n, field)
		if !ok {
			return
		}
		if err := v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(raw); err != nil {
			d.problem(n, field, "%v", err)
		}
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		d.structure(n, v, field)
	case reflect.Map:
		pairs, ok := d.pairs(n, field)
		if !ok {
			return
		}
		v.Set(reflect.MakeMap(t))
		for _, p := range pairs {
			elem := reflect.New(t.Elem()).Elem()
			d.value(p.value, elem, join(field, p.key))
			v.SetMapIndex(reflect.ValueOf(p.key).Convert(t.Key()), elem)
		}
	case reflect.Slice:
		list, ok := n.(*ast.SequenceNode)
		if !ok {
			d.problem(n, field, "want a list, got %s", describe(n))
			return
		}
		v.Set(reflect.MakeSlice(t, len(list.Values), len(list.Values)))
		for i, item := range list.Values {
			d.value(item, v.Index(i), fmt.Sprintf("%s[%d]", field, i))
		}
	case reflect.String:
		switch n.(type) {
		case *ast.StringNode, *ast.LiteralNode:
			text, _ := scalar(n)
			v.SetString(text)
		default:
			hint := ""
			switch n.(type) {
			case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
				hint = " (put it in quotes)"
			}
			d.problem(n, field, "want text, got %s%s", describe(n), hint)
		}
	case reflect.Bool:
		b, ok := n.(*ast.BoolNode)
		if !ok {
			d.problem(n, field, "want true or false, got %s", describe(n))
			return
		}
		v.SetBool(b.Value)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		text := d.integer(n, field)
		if text == "" {
			return
		}
		i, err := strconv.ParseInt(text, 10, t.Bits())
		if err != nil {
			d.problem(n, field, "want a whole number that fits %d bits, got %s", t.Bits(), text)
			return
		}
		v.SetInt(i)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		text := d.integer(n, field)
		if text == "" {
			return
		}
		u, err := strconv.ParseUint(text, 10, t.Bits())
		if err != nil {
			d.problem(n, field, "want a whole number from 0 to %d, got %s", uint64(1)<<(t.Bits()-1)*2-1, text)
			return
		}
		v.SetUint(u)
	default:
		panic(fmt.Sprintf("controlplane: the control type %s is not supported", t)) // a fault of ours, found by any test of the kind
	}
}

// integer returns the text of a plain decimal integer; other notations (0x10, 1_000, 010) mean different things to different readers.
func (d *decoder) integer(n ast.Node, field string) string {
	i, ok := n.(*ast.IntegerNode)
	if !ok {
		d.problem(n, field, "want a whole number, got %s", describe(n))
		return ""
	}
	text := i.Token.Value
	digits := strings.TrimPrefix(text, "-")
	if digits == "" || strings.Trim(digits, "0123456789") != "" || len(digits) > 1 && digits[0] == '0' {
		d.problem(n, field, "want a whole number in plain decimal digits, got %s", text)
		return ""
	}
	return text
}

func (d *decoder) time(n ast.Node, v reflect.Value, field string) {
	text, ok := scalar(n)
	if !ok {
		d.problem(n, field, "want a time such as 2026-07-01T00:00:00Z, got %s", describe(n))
		return
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	switch {
	case err != nil:
		d.problem(n, field, "want a time with its zone such as 2026-07-01T00:00:00Z or 2026-07-01T00:00:00+09:00, got %q", text)
	case t.Year() < 1970 || t.Year() > 9000:
		d.problem(n, field, "the year %d is out of range", t.Year())
	default:
		v.Set(reflect.ValueOf(t.UTC()))
	}
}

func (d *decoder) structure(n ast.Node, v reflect.Value, field string) {
	pairs, ok := d.pairs(n, field)
	if !ok {
		return
	}
	fields := fieldsOf(v.Type())
	for _, p := range pairs {
		index, known := fields[p.key]
		if !known {
			d.unknown = true
			d.problem(p.node, join(field, p.key), "unknown field%s", suggest(p.key, fields))
			continue
		}
		if isNull(p.value) {
			d.problem(p.node, join(field, p.key), "has no value: give one, or leave the field out")
			continue
		}
		d.value(p.value, v.FieldByIndex(index), join(field, p.key))
	}
}

func isNull(n ast.Node) bool {
	if n == nil {
		return true
	}
	_, null := n.(*ast.NullNode)
	return null
}

// fieldsOf returns the fields of a struct by their JSON names, embedded structs included.
func fieldsOf(t reflect.Type) map[string][]int {
	out := make(map[string][]int)
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" || !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		out[name] = f.Index
	}
	return out
}

// suggest returns the nearest known name when it is near enough to be what was meant, else the list of names.
func suggest[V any](got string, known map[string]V) string {
	best, bestDistance := "", 3
	for name := range known {
		if n := distance(got, name, bestDistance); n < bestDistance || n == bestDistance && best != "" && name < best {
			best, bestDistance = name, n
		}
	}
	if best != "" {
		return fmt.Sprintf(" (did you mean %s?)", best)
	}
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	return " (the fields are " + strings.Join(names, ", ") + ")"
}

// distance is the edit distance of two short strings; anything above most is reported as most+1.
func distance(a, b string, most int) int {
	if len(a) > 64 || len(b) > 64 || len(a)-len(b) > most || len(b)-len(a) > most {
		return most + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// json appends the JSON of a node. Numbers keep their text.
func (d *decoder) json(dst []byte, n ast.Node, field string) ([]byte, bool) {
	switch n := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		pairs, ok := d.pairs(n, field)
		if !ok {
			return dst, false
		}
		slices.SortFunc(pairs, func(a, b pair) int { return strings.Compare(a.key, b.key) })
		dst = append(dst, '{')
		for i, p := range pairs {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendString(dst, p.key), ':')
			var fine bool
			if dst, fine = d.json(dst, p.value, join(field, p.key)); !fine {
				ok = false
			}
		}
		return append(dst, '}'), ok
	case *ast.SequenceNode:
		ok := true
		dst = append(dst, '[')
		for i, item := range n.Values {
			if i > 0 {
				dst = append(dst, ',')
			}
			var fine bool
			if dst, fine = d.json(dst, item, fmt.Sprintf("%s[%d]", field, i)); !fine {
				ok = false
			}
		}
		return append(dst, ']'), ok
	case *ast.StringNode, *ast.LiteralNode:
		text, _ := scalar(n)
		return appendString(dst, text), true
	case *ast.BoolNode:
		return strconv.AppendBool(dst, n.Value), true
	case *ast.IntegerNode, *ast.FloatNode:
		if text := n.GetToken().Value; json.Valid([]byte(text)) {
			return append(dst, text...), true
		}
		d.problem(n, field, "want a number in plain decimal digits, got %s", n.GetToken().Value)
		return dst, false
	}
	d.problem(n, field, "want a value, got %s", describe(n))
	return dst, false
}

func appendString(dst []byte, s string) []byte {
	b, _ := json.Marshal(s) // a string always has a JSON form
	return append(dst, b...)
}
