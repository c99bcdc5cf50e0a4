package chdb

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/ClickHouse/ch-go/compress"
)

// Codes of ClickHouse's ErrorCodes.cpp that the server itself answers with.
const (
	codeBadArguments     = 36
	codeNotImplemented   = 48
	codeSyntaxError      = 62
	codeUnknownSetting   = 115
	codeQueryTooLarge    = 298
	codeQueryWasCanceled = 394
	codeUnknownException = 1002
)

// statusOf is the HTTP status of an exception's code where it is not 500.
var statusOf = map[int]int{
	26: 400, 27: 400, 36: 400, 43: 400, 47: 404, 53: 400, 60: 404, 62: 400, 63: 400, 70: 400, 72: 400,
	81: 404, 115: 404, 46: 404, 50: 404, 16: 404, 117: 400, 48: 501, 159: 408, 298: 413, 497: 403,
}

func refusal(code int, text string) *Exception {
	return &Exception{Code: code, Text: fmt.Sprintf("Code: %d. DB::Exception: %s", code, text)}
}

// headBytes is how much of an answer is held back: an error until then has its own status. It is what makes nearly
// every failing query a clean error, since most fail before their first rows or answer little.
const headBytes = 1 << 20

// response writes a result.
type response struct {
	w        http.ResponseWriter
	revision uint64 // 0: Native blocks as they are
	native   bool
	method   compress.Method
	frames   *compress.Writer // nil: no compressed blocks
	tag      string

	head    bytes.Buffer
	started bool // the head was sent
}

// configure sets the headers and what is done to the data.
func (out *response) configure(req *request) {
	out.native = strings.EqualFold(req.format, "Native")
	out.revision = req.revision
	if req.compress {
		out.method = compress.LZ4
		switch req.method {
		case "ZSTD":
			out.method = compress.ZSTD
		case "NONE":
			out.method = compress.None
		}
		out.frames = compress.NewWriter(compress.LevelZero, out.method)
	}
	tag := make([]byte, 8)
	_, _ = rand.Read(tag)
	out.tag = hex.EncodeToString(tag)
	h := out.w.Header()
	h.Set("X-ClickHouse-Query-Id", req.queryID)
	h.Set("X-ClickHouse-Format", req.format)
	h.Set("X-ClickHouse-Exception-Tag", out.tag)
	h.Set("Content-Type", contentType(req.format))
}

func contentType(format string) string {
	f := strings.ToLower(format)
	switch {
	case strings.Contains(f, "eachrow") || f == "ndjson" || f == "jsonlines":
		return "application/x-ndjson; charset=UTF-8"
	case strings.HasPrefix(f, "json"):
		return "application/json; charset=UTF-8"
	case strings.HasPrefix(f, "csv"):
		return "text/csv; charset=UTF-8; header=absent"
	case strings.HasPrefix(f, "tabseparated") || strings.HasPrefix(f, "tsv"):
		return "text/tab-separated-values; charset=UTF-8"
	case f == "native" || f == "parquet" || strings.HasPrefix(f, "rowbinary"):
		return "application/octet-stream"
	default:
		return "text/plain; charset=UTF-8"
	}
}

// write sends a piece of the result.
func (out *response) write(piece []byte) error {
	if out.native {
		return writeNative(writerFunc(out.send), piece, out.revision)
	}
	_, err := out.send(piece)
	return err
}

// finish sends the last piece and everything held back.
func (out *response) finish(piece []byte) error {
	if len(piece) > 0 {
		if err := out.write(piece); err != nil {
			return err
		}
	}
	if !out.started {
		// The length tells clickhouse-go that a result is empty.
		if out.frames == nil {
			out.w.Header().Set("Content-Length", strconv.Itoa(out.head.Len()))
		} else if out.head.Len() == 0 {
			out.w.Header().Set("Content-Length", "0")
		}
	}
	return out.flush()
}

func (out *response) send(p []byte) (int, error) {
	if out.head.Len()+len(p) > headBytes {
		if err := out.flush(); err != nil {
			return 0, err
		}
		if len(p) > headBytes/2 {
			return len(p), out.emit(p)
		}
	}
	out.head.Write(p)
	return len(p), nil
}

func (out *response) flush() error {
	if out.head.Len() == 0 {
		return nil
	}
	err := out.emit(out.head.Bytes())
	out.head.Reset()
	return err
}

// emit sends bytes, in compressed blocks when the client wants them.
func (out *response) emit(p []byte) error {
	out.started = true
	if out.frames == nil {
		_, err := out.w.Write(p)
		return err
	}
	for len(p) > 0 {
		n := min(len(p), headBytes)
		if err := out.frames.Compress(p[:n]); err != nil {
			return fmt.Errorf("compress the answer: %w", err)
		}
		if _, err := out.w.Write(out.frames.Data); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// fail answers with an exception. When part of the result is gone already it follows the result, framed as
// ClickHouse frames it, and the connection is cut: nobody can take the part for the whole.
func (out *response) fail(err error) {
	e := asException(err)
	if out.started {
		_ = out.flush()
		_ = out.emit(fmt.Appendf(nil, "\r\n__exception__\r\n%s\r\n%s\n%d %s\r\n__exception__\r\n",
			out.tag, e.Text, len(e.Text)+1, out.tag))
		_ = http.NewResponseController(out.w).Flush()
		panic(http.ErrAbortHandler)
	}
	status, known := statusOf[e.Code]
	if !known {
		status = http.StatusInternalServerError
	}
	h := out.w.Header()
	h.Del("Content-Length")
	h.Set("X-ClickHouse-Exception-Code", strconv.Itoa(e.Code))
	h.Set("Content-Type", "text/plain; charset=UTF-8")
	out.w.WriteHeader(status)
	_, _ = io.WriteString(out.w, e.Text+"\n")
}

func asException(err error) *Exception {
	if e, ok := errors.AsType[*Exception](err); ok {
		if e.Code == 0 {
			return refusal(codeUnknownException, e.Text)
		}
		return e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return refusal(codeQueryWasCanceled, "Query was cancelled: the client went away. (QUERY_WAS_CANCELLED)")
	}
	return refusal(codeUnknownException, err.Error())
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
