package controlplane

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/kanjo-dev/kanjo/schemas/control"
)

// Bounds of what Parse reads; beyond them is a problem.
const (
	fileBytesMax = 8 << 20
	nestingMax   = 32
)

// Set is what a directory of YAML files asks for.
type Set struct {
	entries  []*entry
	problems Problems // that Parse found
}

// Len returns the number of documents.
func (s Set) Len() int { return len(s.entries) }

// entry is one YAML document.
type entry struct {
	kind          control.Kind
	name          string
	effectiveFrom time.Time // zero: not given
	deleted       bool
	spec          any // what control.NewSpec(kind) returns, filled; nil when deleted
	file          string
	at            map[string]Position
	// unread holds the fields whose values could not be read, and unknown says that a field has a name that there is not.
	unread  map[string]bool
	unknown bool
	// broken says that Parse found a problem. The name still stands, so that references to it are not problems too.
	broken bool
}

// has reports whether the document gives the field.
func (e *entry) has(field string) bool { _, ok := e.at[field]; return ok }

// problem makes a problem of a field, at the field's place or, when it is absent, at the nearest parent that is there.
func (e *entry) problem(field, format string, args ...any) Problem {
	p := Problem{File: e.file, Field: field, Message: fmt.Sprintf(format, args...)}
	for path := field; ; path = parent(path) {
		if pos, ok := e.at[path]; ok {
			p.Line, p.Column = pos.Line, pos.Column
			return p
		}
		if path == "" {
			return p
		}
	}
}

func parent(path string) string {
	return path[:max(0, strings.LastIndexAny(path, ".["))]
}

// Parse reads YAML files; a directory stands for every .yaml and .yml file below it, in the order of their names. It
// reports every problem that can be seen without knowing the other documents. A set with problems may still be given to
// MakePlan, which adds the problems between documents and plans nothing.
func Parse(paths ...string) (Set, Problems) {
	var set Set
	var problems Problems
	for _, path := range paths {
		before, wrong := len(set.entries), len(problems)
		files, err := yamlFiles(path)
		if err == nil && len(files) == 0 {
			err = fmt.Errorf("holds no .yaml or .yml file")
		}
		if err != nil {
			problems = append(problems, Problem{File: path, Message: err.Error()})
		}
		for _, file := range files {
			text, err := readFile(file)
			if err != nil {
				problems = append(problems, Problem{File: file, Message: err.Error()})
				continue
			}
			entries, found := parseFile(file, text)
			set.entries = append(set.entries, entries...)
			problems = append(problems, found...)
		}
		if len(set.entries) == before && len(problems) == wrong {
			problems = append(problems, Problem{File: path, Message: "no documents found"})
		}
	}
	set.problems = problems.sorted()
	return set, set.problems
}

func yamlFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	var files []string
	err = filepath.WalkDir(path, func(p string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ext := filepath.Ext(p); !entry.IsDir() && (ext == ".yaml" || ext == ".yml") {
			files = append(files, p)
		}
		return nil
	})
	slices.Sort(files)
	return files, err
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > fileBytesMax {
		return nil, fmt.Errorf("has %d bytes, at most %d are read: split it", info.Size(), fileBytesMax)
	}
	return os.ReadFile(path)
}

// ParseBytes is Parse on text; file is its name in problems.
func ParseBytes(file string, text []byte) (Set, Problems) {
	entries, problems := parseFile(file, text)
	return Set{entries, problems.sorted()}, problems
}

func parseFile(file string, text []byte) ([]*entry, Problems) {
	var problems Problems
	refuse := func(line, column int, format string, args ...any) ([]*entry, Problems) {
		return nil, Problems{{File: file, Line: line, Column: column, Message: fmt.Sprintf(format, args...)}}
	}
	if !utf8.Valid(text) {
		return refuse(0, 0, "is not UTF-8 text")
	}
	tokens := lexer.Tokenize(string(text))
	if t := tooDeep(tokens); t != nil {
		return refuse(t.Position.Line, t.Position.Column, "nests deeper than %d levels", nestingMax)
	}
	parsed, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey()) // the decoder reports duplicates, all of them
	if err != nil {
		if e, ok := err.(yaml.Error); ok && e.GetToken() != nil {
			return refuse(e.GetToken().Position.Line, e.GetToken().Position.Column, "not YAML: %s", e.GetMessage())
		}
		return refuse(0, 0, "not YAML: %v", err)
	}
	var entries []*entry
	for _, doc := range parsed.Docs {
		if doc.Body == nil || isNull(doc.Body) {
			continue
		}
		if _, comment := doc.Body.(*ast.CommentGroupNode); comment {
			continue
		}
		d := &decoder{file: file, problems: &problems, at: make(map[string]Position)}
		if e := d.entry(doc.Body); e != nil {
			entries = append(entries, e)
		}
	}
	return entries, problems
}

// tooDeep finds the token at which nesting passes what a control document can need. The parser recurses, so unbounded
// nesting would end the process instead of being a problem with a line.
func tooDeep(tokens token.Tokens) *token.Token {
	flow, compact, line := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, compact = t.Position.Line, 0
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow--
		case token.SequenceEntryType, token.MappingKeyType, token.TagType, token.AnchorType:
			compact++ // "- - - x" nests once a dash, on one line
		}
		if flow > nestingMax || compact > nestingMax || t.Position.IndentNum > 16*nestingMax {
			return t
		}
	}
	return nil
}

// entry reads one document. It returns nil when not even the kind and the name can be read.
func (d *decoder) entry(n ast.Node) *entry {
	pairs, ok := d.pairs(n, "")
	if !ok {
		return nil
	}
	d.at[""] = position(n)
	e := &entry{file: d.file, at: d.at}
	before := len(*d.problems)
	var spec ast.Node
	known := map[string]any{"kind": &e.kind, "name": &e.name, "effective_from": &e.effectiveFrom, "deleted": &e.deleted, "spec": nil}
	for _, p := range pairs {
		into, ok := known[p.key]
		switch {
		case !ok:
			d.unknown = true
			d.problem(p.node, p.key, "unknown field%s", suggest(p.key, known))
		case isNull(p.value):
			d.problem(p.node, p.key, "has no value: give one, or leave the field out")
		case p.key == "spec":
			spec = p.value
			d.at["spec"] = position(p.node)
		default:
			d.value(p.value, reflect.ValueOf(into).Elem(), p.key)
		}
	}
	if e.kind == "" {
		if !e.has("kind") {
			d.problem(n, "kind", "missing: every document says what it is (%s)", kindList())
		}
		return nil
	}
	into := control.NewSpec(e.kind)
	if into == nil {
		*d.problems = append(*d.problems, e.problem("kind", "unknown kind %q (the kinds are %s)", e.kind, kindList()))
		return nil
	}
	if !e.has("name") {
		d.problem(n, "name", "missing: every document has a name")
	}
	switch {
	case e.deleted && spec != nil:
		d.problem(n, "spec", "a deleted document has no spec: remove spec or deleted")
	case e.deleted:
	case spec == nil:
		d.problem(n, "spec", "missing")
	default:
		d.value(spec, reflect.ValueOf(into).Elem(), "spec")
		e.spec = into
	}
	e.unread, e.unknown = make(map[string]bool), d.unknown
	for _, p := range (*d.problems)[before:] {
		e.unread[p.Field] = true
	}
	// What could not be read is a problem already and hides no other one.
	*d.problems = append(*d.problems, checkName(e)...)
	*d.problems = append(*d.problems, checkAlone(e)...)
	e.broken = len(*d.problems) > before
	if e.name == "" {
		return nil
	}
	return e
}

func kindList() string {
	var names []string
	for _, k := range control.Kinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}
