package chdb

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Engine is the ClickHouse engine of this process, open on one data directory. There can be only one per process,
// and only one process may have a data directory open.
type Engine struct {
	lib     *library
	dataDir string
	version string

	// keeper is a connection nothing runs on: the engine shuts down when its last connection closes, and starting
	// it again in the same process is not supported well.
	keeper *Conn
}

// Open loads libchdb from library (a path of libchdb.so) and opens dataDir, creating it when missing. More args are
// given to the engine as they are, e.g. "--max_server_memory_usage=4000000000".
func Open(libraryPath, dataDir string, args ...string) (*Engine, error) {
	lib, err := load(libraryPath)
	if err != nil {
		return nil, err
	}
	e := &Engine{lib: lib, dataDir: dataDir}
	if e.keeper, err = e.connect(args...); err != nil {
		return nil, fmt.Errorf("open data directory %s: %w", dataDir, err)
	}
	version, err := e.keeper.Query("SELECT version()", "TabSeparatedRaw", nil)
	if err != nil {
		e.Close()
		return nil, fmt.Errorf("ask the engine for its version: %w", err)
	}
	e.version = strings.TrimSpace(string(version))
	return e, nil
}

// Version is the ClickHouse version, e.g. "26.7.2.1".
func (e *Engine) Version() string { return e.version }

// Connect opens a connection: a session with its own settings and current database, for one statement at a time.
func (e *Engine) Connect() (*Conn, error) { return e.connect() }

// Close shuts the engine down once every other connection is closed. Safe twice.
func (e *Engine) Close() { e.keeper.Close() }

func (e *Engine) connect(args ...string) (*Conn, error) {
	argv := append([]string{"clickhouse", "--path=" + e.dataDir}, args...)
	var pinner runtime.Pinner
	defer pinner.Unpin()
	cargs := make([]*byte, len(argv)+1) // argv ends in a null pointer.
	for i, arg := range argv {
		b := append([]byte(arg), 0)
		pinner.Pin(&b[0])
		cargs[i] = &b[0]
	}
	handle := e.lib.connect(int32(len(argv)), &cargs[0])
	if handle == nil || *handle == nil {
		return nil, errors.New("the engine refused to open (is another process using the data directory?)")
	}
	return &Conn{lib: e.lib, handle: handle}, nil
}

// Conn is one connection. It is not safe for concurrent use.
type Conn struct {
	lib    *library
	handle *unsafe.Pointer
}

// Close closes the connection. Safe twice.
func (c *Conn) Close() {
	if c.handle != nil {
		c.lib.closeConn(c.handle)
		c.handle = nil
	}
}

// Query runs one statement with its {name:Type} parameters and returns the whole result in the given format.
// An error of the engine matches *Exception.
func (c *Conn) Query(sql, format string, params map[string]string) ([]byte, error) {
	p := newParams(params)
	defer p.free()
	r := c.lib.query(*c.handle, ptr(sql), len(sql), ptr(format), len(format), p.names, p.nameLens, p.values, p.valueLens, p.n)
	runtime.KeepAlive(sql)
	runtime.KeepAlive(format)
	defer c.lib.destroyResult(r)
	return c.lib.take(r)
}

// Rows is a result that is read piece by piece.
type Rows struct {
	conn   *Conn
	stream unsafe.Pointer
	done   bool
}

// Stream starts one SELECT and returns its result to be read piece by piece. Each piece is whole in its format: a
// number of Native blocks, of CSV lines. The connection runs nothing else until Close.
func (c *Conn) Stream(sql, format string, params map[string]string) (*Rows, error) {
	p := newParams(params)
	defer p.free()
	r := c.lib.streamQuery(*c.handle, ptr(sql), len(sql), ptr(format), len(format), p.names, p.nameLens, p.values, p.valueLens, p.n)
	runtime.KeepAlive(sql)
	runtime.KeepAlive(format)
	if err := c.lib.resultError(r); err != nil {
		c.lib.destroyResult(r)
		return nil, err
	}
	return &Rows{conn: c, stream: r}, nil
}

// Next returns the next piece, nil at the end.
func (r *Rows) Next() ([]byte, error) {
	if r.done {
		return nil, nil
	}
	piece := r.conn.lib.fetch(*r.conn.handle, r.stream)
	defer r.conn.lib.destroyResult(piece)
	data, err := r.conn.lib.take(piece)
	if err != nil || len(data) == 0 {
		r.done = true
		return nil, err
	}
	return data, nil
}

// Close ends the query, cancelling it when it has more to give. Safe twice.
func (r *Rows) Close() {
	if r.stream == nil {
		return
	}
	if !r.done {
		r.conn.lib.cancelQuery(*r.conn.handle, r.stream)
	}
	r.conn.lib.destroyResult(r.stream)
	r.stream = nil
}

// Inserter takes the data of one INSERT piece by piece.
type Inserter struct {
	lib    *library
	stream unsafe.Pointer
}

// Insert starts "INSERT INTO t (columns)", without FORMAT, whose data follows in the given format. The connection
// runs nothing else until Close.
func (c *Conn) Insert(sql, format string, params map[string]string) (*Inserter, error) {
	p := newParams(params)
	defer p.free()
	s := c.lib.streamInsert(*c.handle, ptr(sql), len(sql), ptr(format), len(format), p.names, p.nameLens, p.values, p.valueLens, p.n)
	runtime.KeepAlive(sql)
	runtime.KeepAlive(format)
	in := &Inserter{lib: c.lib, stream: s}
	if err := in.err(); err != nil {
		in.Close()
		return nil, err
	}
	return in, nil
}

// Write hands data over; it waits when the engine is behind.
func (in *Inserter) Write(data []byte) (int, error) {
	if len(data) == 0 {
		return 0, nil
	}
	if in.lib.append(in.stream, unsafe.Pointer(&data[0]), len(data)) != stateSuccess {
		if err := in.err(); err != nil {
			return 0, err
		}
		return 0, errors.New("the engine took no more data")
	}
	return len(data), nil
}

// Commit ends the data: the rows are stored when it returns nil.
func (in *Inserter) Commit() error {
	r := in.lib.finishInsert(in.stream)
	defer in.lib.destroyResult(r)
	return in.lib.resultError(r)
}

// Close releases the insert, cancelling it when it was not committed. Safe twice.
func (in *Inserter) Close() {
	if in.stream != nil {
		in.lib.destroyInsert(in.stream)
		in.stream = nil
	}
}

func (in *Inserter) err() error { return exception(in.lib.insertError(in.stream)) }

// Exception is an error that the engine reported.
type Exception struct {
	Code int    // ClickHouse's error code, 0 when the text has none.
	Text string // "Code: 60. DB::Exception: ..."
}

func (e *Exception) Error() string { return e.Text }

func exception(text *byte) error {
	if text == nil {
		return nil
	}
	e := &Exception{Text: strings.TrimSpace(goString(text))}
	if digits, ok := strings.CutPrefix(e.Text, "Code: "); ok {
		digits, _, _ = strings.Cut(digits, ".")
		e.Code, _ = strconv.Atoi(digits)
	}
	return e
}

const stateSuccess = 0

// library is the part of chdb.h that is used. Handles are pointers into memory of the engine.
type library struct {
	connect       func(argc int32, argv **byte) *unsafe.Pointer
	closeConn     func(conn *unsafe.Pointer)
	query         paramsFunc
	streamQuery   paramsFunc
	streamInsert  paramsFunc
	fetch         func(conn, stream unsafe.Pointer) unsafe.Pointer
	cancelQuery   func(conn, stream unsafe.Pointer)
	append        func(stream, data unsafe.Pointer, n int) int32
	finishInsert  func(stream unsafe.Pointer) unsafe.Pointer
	insertError   func(stream unsafe.Pointer) *byte
	destroyInsert func(stream unsafe.Pointer)
	buffer        func(result unsafe.Pointer) *byte
	length        func(result unsafe.Pointer) int
	err           func(result unsafe.Pointer) *byte
	destroyResult func(result unsafe.Pointer)
}

type paramsFunc = func(conn unsafe.Pointer, sql *byte, sqlLen int, format *byte, formatLen int,
	names **byte, nameLens *int, values **byte, valueLens *int, n int) unsafe.Pointer

var (
	loadMu sync.Mutex
	loaded = map[string]*library{}
)

// load opens the library once per process and path.
func load(path string) (*library, error) {
	loadMu.Lock()
	defer loadMu.Unlock()
	if lib := loaded[path]; lib != nil {
		return lib, nil
	}
	so, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("load the ClickHouse engine: %w", err)
	}
	lib := new(library)
	for name, fn := range map[string]any{
		"chdb_connect":                     &lib.connect,
		"chdb_close_conn":                  &lib.closeConn,
		"chdb_query_with_params_n":         &lib.query,
		"chdb_stream_query_with_params_n":  &lib.streamQuery,
		"chdb_stream_insert_with_params_n": &lib.streamInsert,
		"chdb_stream_fetch_result":         &lib.fetch,
		"chdb_stream_cancel_query":         &lib.cancelQuery,
		"chdb_stream_append":               &lib.append,
		"chdb_stream_done":                 &lib.finishInsert,
		"chdb_stream_insert_error":         &lib.insertError,
		"chdb_destroy_insert_stream":       &lib.destroyInsert,
		"chdb_result_buffer":               &lib.buffer,
		"chdb_result_length":               &lib.length,
		"chdb_result_error":                &lib.err,
		"chdb_destroy_query_result":        &lib.destroyResult,
	} {
		symbol, err := purego.Dlsym(so, name)
		if err != nil {
			return nil, fmt.Errorf("load the ClickHouse engine: %w", err)
		}
		purego.RegisterFunc(fn, symbol)
	}
	// The engine's own handlers would take SIGSEGV and friends away from the Go runtime.
	var setSignalHandlers func(enabled int32)
	purego.RegisterLibFunc(&setSignalHandlers, so, "chdb_set_signal_handlers_enabled")
	setSignalHandlers(0)
	loaded[path] = lib
	return lib, nil
}

// take copies a result's data into Go memory.
func (l *library) take(result unsafe.Pointer) ([]byte, error) {
	if err := l.resultError(result); err != nil {
		return nil, err
	}
	n := l.length(result)
	if n == 0 {
		return nil, nil
	}
	return append(make([]byte, 0, n), unsafe.Slice(l.buffer(result), n)...), nil
}

func (l *library) resultError(result unsafe.Pointer) error {
	if result == nil {
		return errors.New("the engine gave no answer")
	}
	return exception(l.err(result))
}

// params are a statement's parameters as four C arrays.
type params struct {
	pinner              runtime.Pinner
	names, values       **byte
	nameLens, valueLens *int
	n                   int
}

func newParams(m map[string]string) *params {
	p := &params{n: len(m)}
	if p.n == 0 {
		return p
	}
	names, values := make([]*byte, 0, p.n), make([]*byte, 0, p.n)
	nameLens, valueLens := make([]int, 0, p.n), make([]int, 0, p.n)
	for name, value := range m {
		names, nameLens = append(names, p.pin(name)), append(nameLens, len(name))
		values, valueLens = append(values, p.pin(value)), append(valueLens, len(value))
	}
	p.names, p.values, p.nameLens, p.valueLens = &names[0], &values[0], &nameLens[0], &valueLens[0]
	p.pinner.Pin(p.names)
	p.pinner.Pin(p.values)
	p.pinner.Pin(p.nameLens)
	p.pinner.Pin(p.valueLens)
	return p
}

func (p *params) free() { p.pinner.Unpin() }

func (p *params) pin(s string) *byte {
	b := append([]byte(s), 0)
	p.pinner.Pin(&b[0])
	return &b[0]
}

// ptr is the address of a string's bytes; a null pointer is never passed, not even for "".
func ptr(s string) *byte {
	if s == "" {
		return new(byte)
	}
	return unsafe.StringData(s)
}

func goString(b *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(b), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(b, n))
}
