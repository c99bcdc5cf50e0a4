package chdb

import "strings"

// statement is what the server must know of an SQL text before it can run it.
type statement struct {
	verb   string // first keyword, upper case: SELECT, WITH, INSERT, CREATE, ...
	sql    string // the text without its trailing semicolon
	format string // of the FORMAT clause, "" when there is none

	// Of an INSERT that takes data: head is the statement without FORMAT clause and data, data begins behind it.
	takesData bool
	head      string
	data      string

	several bool // there is a second statement behind a semicolon
}

// parse reads as much of the text as it must. It knows words, strings, comments and brackets, no grammar: an SQL text
// that it misreads is refused by the engine, which has the grammar.
func parse(sql string) statement {
	var s statement
	s.sql = sql
	depth := 0
	selects := false // INSERT ... SELECT takes its rows from the query
	for t := (tokens{text: sql}); t.next(); {
		switch t.token {
		case "(", "[", "{":
			depth++
			continue
		case ")", "]", "}":
			depth--
			continue
		case ";":
			if depth == 0 {
				s.sql = sql[:t.start]
				s.several = t.next()
				return s
			}
		}
		word := strings.ToUpper(t.token)
		switch {
		case s.verb == "":
			s.verb = word
		case depth > 0:
		case s.verb == "INSERT" && !selects:
			switch word {
			case "SELECT", "WITH", "WATCH":
				selects = true
			case "VALUES":
				s.takesData, s.format = true, "Values"
				s.head, s.data = sql[:t.start], sql[t.end:]
				return s
			case "FORMAT":
				s.head = sql[:t.start]
				t.next()
				s.takesData, s.format = true, t.token
				s.data = strings.TrimPrefix(strings.TrimLeft(sql[t.end:], " \t\r"), "\n")
				return s
			}
		case word == "FORMAT":
			// The last clause but for SETTINGS: a column may have that name, too.
			name := t
			name.next()
			after := name
			if !after.next() || after.token == ";" || strings.EqualFold(after.token, "SETTINGS") {
				s.format = name.token
			}
		}
	}
	return s
}

// tokens walks over an SQL text.
type tokens struct {
	text       string
	start, end int
	token      string // a word, a quoted thing with its quotes, or one other byte
}

func (t *tokens) next() bool {
	for i := t.end; i < len(t.text); {
		c := t.text[i]
		rest := t.text[i:]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v':
			i++
			continue
		case strings.HasPrefix(rest, "--") || strings.HasPrefix(rest, "#!") || strings.HasPrefix(rest, "# "):
			if n := strings.IndexByte(rest, '\n'); n >= 0 {
				i += n + 1
				continue
			}
			i = len(t.text)
			continue
		case strings.HasPrefix(rest, "/*"):
			if n := strings.Index(rest[2:], "*/"); n >= 0 {
				i += n + 4
				continue
			}
			i = len(t.text)
			continue
		case c == '\'' || c == '"' || c == '`':
			return t.take(i, quoted(rest))
		case c == '$':
			if n := heredoc(rest); n > 0 {
				return t.take(i, n)
			}
			return t.take(i, 1)
		case wordByte(c):
			n := 1
			for n < len(rest) && wordByte(rest[n]) {
				n++
			}
			return t.take(i, n)
		default:
			return t.take(i, 1)
		}
	}
	t.start, t.end, t.token = len(t.text), len(t.text), ""
	return false
}

func (t *tokens) take(start, n int) bool {
	t.start, t.end, t.token = start, start+n, t.text[start:start+n]
	return true
}

// quoted is the length of the quoted thing s begins with: a backslash escapes, a doubled quote is a quote.
func quoted(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[0]:
			if i+1 < len(s) && s[i+1] == s[0] {
				i++
				continue
			}
			return i + 1
		}
	}
	return len(s)
}

// heredoc is the length of the $tag$...$tag$ s begins with, 0 when it is none.
func heredoc(s string) int {
	n := 1
	for n < len(s) && wordByte(s[n]) {
		n++
	}
	if n >= len(s) || s[n] != '$' {
		return 0
	}
	tag := s[:n+1]
	end := strings.Index(s[n+1:], tag)
	if end < 0 {
		return 0
	}
	return n + 1 + end + len(tag)
}

func wordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}
