package chdb

import (
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/ch-go/compress"
	"github.com/google/uuid"
)

// statementsMax is how many statements run at once; more wait.
const statementsMax = 100

// bodyMax bounds an SQL text that comes as a request's body. Data of an INSERT that stands behind a statement in the
// URL is streamed and has no bound.
const bodyMax = 256 << 20

// pieceBytes is how much of an INSERT's data is handed to the engine at a time.
const pieceBytes = 1 << 20

// Server answers the ClickHouse HTTP interface, as far as clickhouse-go and curl need it, from an Engine. Each
// request gets a connection of its own, so nothing of one request is left for the next: there are no sessions.
type Server struct {
	engine *Engine
	slots  chan struct{}
}

// NewServer returns a handler on the engine, which must stay open while requests run.
func NewServer(engine *Engine) *Server {
	return &Server{engine: engine, slots: make(chan struct{}, statementsMax)}
}

// ServeHTTP runs the one statement of a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/ping" || r.URL.Path == "/" && r.Method == http.MethodGet && !r.URL.Query().Has("query") {
		_, _ = io.WriteString(w, "Ok.\n")
		return
	}
	if r.URL.Path != "/" {
		http.Error(w, "There is no handle "+r.URL.Path, http.StatusNotFound)
		return
	}
	out := &response{w: w}
	if err := s.serve(out, r); err != nil {
		out.fail(err)
	}
}

func (s *Server) serve(out *response, r *http.Request) error {
	req, err := readRequest(r)
	if err != nil {
		return err
	}
	out.configure(req)

	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-r.Context().Done():
		return r.Context().Err()
	}
	conn, err := s.engine.Connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := req.prepare(conn); err != nil {
		return err
	}
	if req.takesData {
		return s.insert(conn, req)
	}
	stop := func() {}
	if req.readOnly() {
		// Only reading is cut short when the client goes away: of a change it would be unknown how far it came.
		stop = s.killWhenDone(r.Context(), req.mark)
	}
	defer stop()
	return s.run(r.Context(), out, conn, req)
}

// run runs a statement whose answer is a result or nothing.
func (s *Server) run(ctx context.Context, out *response, conn *Conn, req *request) error {
	if !req.streams() {
		data, err := conn.Query(req.sql, req.format, req.params)
		if err != nil {
			return err
		}
		return out.finish(data)
	}
	rows, err := conn.Stream(req.sql, req.format, req.params)
	if err != nil {
		return err
	}
	defer rows.Close()
	for {
		piece, err := rows.Next()
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if piece == nil {
			return out.finish(nil)
		}
		if err := out.write(piece); err != nil {
			return err
		}
	}
}

// insert runs an INSERT whose data follows in its own format.
func (s *Server) insert(conn *Conn, req *request) error {
	in, err := conn.Insert(req.head, req.format, req.params)
	if err != nil {
		return err
	}
	defer in.Close()
	piece := make([]byte, pieceBytes)
	for {
		n, err := fill(piece, req.body)
		if _, err := in.Write(piece[:n]); err != nil {
			return err
		}
		if err == io.EOF {
			return in.Commit()
		}
		if err != nil {
			return fmt.Errorf("read the data of the insert: %w", err)
		}
	}
}

// killWhenDone kills the statements marked with mark once ctx is done, until stop is called.
func (s *Server) killWhenDone(ctx context.Context, mark string) (stop func()) {
	finished, exited := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(exited)
		select {
		case <-finished:
			return
		case <-ctx.Done():
		}
		// The statement may not have begun yet, so once is not enough.
		retry := time.NewTicker(50 * time.Millisecond)
		defer retry.Stop()
		for {
			if conn, err := s.engine.Connect(); err == nil {
				// When it fails the next attempt follows; the statement then only runs longer than it need.
				_, _ = conn.Query("KILL QUERY WHERE Settings['log_comment'] = {mark:String} ASYNC", "Null",
					map[string]string{"mark": mark})
				conn.Close()
			}
			select {
			case <-finished:
				return
			case <-retry.C:
			}
		}
	}()
	return func() {
		close(finished)
		<-exited
	}
}

// request is a request as it was understood.
type request struct {
	statement
	format   string
	params   map[string]string
	settings []setting
	database string
	queryID  string
	mark     string // log_comment of the statement, by which it is found when it must be killed
	get      bool

	body     io.Reader // data of an INSERT
	compress bool      // answer in ClickHouse's compressed blocks
	method   string    // LZ4 or ZSTD
	revision uint64    // of Native blocks in the answer
}

type setting struct{ name, value string }

// notSettings are URL parameters that the HTTP interface takes for itself.
var notSettings = map[string]bool{
	"query": true, "database": true, "default_format": true, "compress": true, "decompress": true, "query_id": true,
	"client_protocol_version": true, "wait_end_of_query": true, "buffer_size": true, "user": true, "password": true,
	"quota_key": true, "role": true, "stacktrace": true, "session_timeout": true, "session_check": true,
	"close_session": true, "log_comment": true,
}

var settingName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)

func readRequest(r *http.Request) (*request, error) {
	// Not r.FormValue: the body is SQL or data whatever its content type says.
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, refusal(codeBadArguments, "cannot parse the URL's parameters: "+err.Error())
	}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/form-data") {
		return nil, refusal(codeNotImplemented, "external tables and multipart requests are not served by this engine")
	}
	if query.Has("session_id") {
		return nil, refusal(codeNotImplemented, "sessions are not served by this engine")
	}
	req := &request{
		params:   map[string]string{},
		database: first(query.Get("database"), r.Header.Get("X-ClickHouse-Database")),
		queryID:  first(query.Get("query_id"), uuid.NewString()),
		get:      r.Method == http.MethodGet || r.Method == http.MethodHead,
		compress: query.Get("compress") == "1",
		method:   strings.ToUpper(first(query.Get("network_compression_method"), "LZ4")),
	}
	req.mark = strings.TrimSpace(query.Get("log_comment") + " " + uuid.NewString())
	if v := query.Get("client_protocol_version"); v != "" {
		if req.revision, err = strconv.ParseUint(v, 10, 64); err != nil {
			return nil, refusal(codeBadArguments, "client_protocol_version is not a number: "+v)
		}
	}
	for name, values := range query {
		if param, ok := strings.CutPrefix(name, "param_"); ok {
			req.params[param] = values[0]
			continue
		}
		if notSettings[name] {
			continue
		}
		if !settingName.MatchString(name) {
			return nil, refusal(codeUnknownSetting, fmt.Sprintf("Unknown setting %q", name))
		}
		req.settings = append(req.settings, setting{name, values[0]})
	}
	if err := req.readBody(r, query); err != nil {
		return nil, err
	}
	if req.several {
		return nil, refusal(codeSyntaxError, "Syntax error (Multi-statements are not allowed)")
	}
	if req.verb == "" {
		return nil, refusal(codeSyntaxError, "Syntax error: Empty query")
	}
	req.format = first(req.statement.format, r.Header.Get("X-ClickHouse-Format"), query.Get("default_format"), "TabSeparated")
	return req, nil
}

// readBody finds the statement in the URL, in the body, or begun in one and ended in the other.
func (req *request) readBody(r *http.Request, query url.Values) error {
	body := io.Reader(r.Body)
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip":
		gz, err := gzip.NewReader(body)
		if err != nil {
			return refusal(codeBadArguments, "the body is not gzip: "+err.Error())
		}
		body = gz
	case "deflate":
		z, err := zlib.NewReader(body)
		if err != nil {
			return refusal(codeBadArguments, "the body is not deflate: "+err.Error())
		}
		body = z
	default:
		return refusal(codeNotImplemented, "Content-Encoding "+encoding+" is not served by this engine: use gzip, deflate or ClickHouse's LZ4")
	}
	if query.Get("decompress") == "1" {
		body = newFrames(body)
	}

	sql := query.Get("query")
	if req.statement = parse(sql); req.takesData {
		req.body = io.MultiReader(strings.NewReader(req.data), body)
		return nil
	}
	rest, err := io.ReadAll(io.LimitReader(body, bodyMax+1))
	if err != nil {
		return fmt.Errorf("read the statement: %w", err)
	}
	if len(rest) > bodyMax {
		return refusal(codeQueryTooLarge, fmt.Sprintf("the statement is larger than %d bytes", bodyMax))
	}
	switch {
	case sql == "":
		sql = string(rest)
	case len(rest) > 0:
		sql += "\n" + string(rest)
	}
	if req.statement = parse(sql); req.takesData {
		req.body = strings.NewReader(req.data)
	}
	return nil
}

// prepare puts the settings, the database and the mark on a fresh connection.
func (req *request) prepare(conn *Conn) error {
	var set strings.Builder
	set.WriteString("SET log_comment = " + quote(req.mark))
	readonly := ""
	for _, s := range req.settings {
		if s.name == "readonly" { // After the others, which it would forbid.
			readonly = s.value
			continue
		}
		fmt.Fprintf(&set, ", %s = %s", s.name, quote(s.value))
	}
	if _, err := conn.Query(set.String(), "Null", nil); err != nil {
		return err
	}
	if req.database != "" && req.database != "default" {
		if _, err := conn.Query("USE "+quoteName(req.database), "Null", nil); err != nil {
			return err
		}
	}
	if readonly == "" && req.get {
		readonly = "2" // A GET changes nothing, as in ClickHouse.
	}
	if readonly != "" && readonly != "0" {
		if _, err := conn.Query("SET readonly = "+quote(readonly), "Null", nil); err != nil {
			return err
		}
	}
	return nil
}

func (req *request) readOnly() bool {
	switch req.verb {
	case "SELECT", "WITH", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "EXISTS", "CHECK":
		return true
	}
	return false
}

// streamable are the formats whose results may be put together from pieces, because they have no head, no foot and
// nothing between rows. The result of another format stands in memory once before it is sent.
var streamable = map[string]bool{
	"native": true, "rowbinary": true, "csv": true,
	"tabseparated": true, "tsv": true, "tabseparatedraw": true, "tsvraw": true, "raw": true,
	"jsoneachrow": true, "jsonlines": true, "ndjson": true, "jsoncompacteachrow": true, "jsonstringseachrow": true,
}

// streams says whether the result is read piece by piece: the engine does this for SELECT only.
func (req *request) streams() bool {
	return (req.verb == "SELECT" || req.verb == "WITH") && streamable[strings.ToLower(req.format)]
}

// fill reads until p is full. Unlike io.ReadFull it returns the reader's own error, so that the end of a body
// (io.EOF) and a body that was cut short (io.ErrUnexpectedEOF) stay different things.
func fill(p []byte, r io.Reader) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = r.Read(p[n:])
		n += m
	}
	return n, err
}

// frames reads ClickHouse's compressed blocks. Its end is io.EOF only where a block ends; compress.Reader alone also
// says so behind a block's header.
type frames struct {
	raw    *counter
	blocks *compress.Reader
	whole  int64 // bytes of raw up to the end of the last block
}

func newFrames(r io.Reader) *frames {
	raw := &counter{r: r}
	return &frames{raw: raw, blocks: compress.NewReader(raw)}
}

func (f *frames) Read(p []byte) (int, error) {
	n, err := f.blocks.Read(p)
	if err == nil {
		f.whole = f.raw.n
	} else if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
		if f.raw.n == f.whole {
			err = io.EOF
		}
	}
	return n, err
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// quote makes an SQL string literal.
func quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

func quoteName(s string) string {
	return "`" + strings.NewReplacer(`\`, `\\`, "`", "\\`").Replace(s) + "`"
}
