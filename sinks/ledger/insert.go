package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"

	"github.com/kanjo-dev/kanjo/internal/clickhouse"
)

// inserter stores one Native block at a time, over the protocol that the connection is configured for. The block is built
// with ch-go's columns, which is several times cheaper than clickhouse-go's batches; docs/adr/0004-ledger-intents.md has
// the figures. It is safe for concurrent use.
type inserter struct {
	cfg     clickhouse.Config
	timeout time.Duration

	// HTTP
	client *http.Client
	base   url.URL
	bufs   sync.Pool // of *proto.Buffer

	// Native: idle connections; a connection serves one insert at a time and is closed when an insert fails.
	idle chan *ch.Client
	opts ch.Options
}

// insertError is an answer of the server that says that the insert failed. Whatever the code, the sink tries again.
type insertError struct {
	code int // ClickHouse's, 0 when the answer has none
	text string
}

func (e *insertError) Error() string { return e.text }

func newInserter(cfg clickhouse.Config, timeout time.Duration) (*inserter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	tlsConfig, err := cfg.TLSConfig()
	if err != nil {
		return nil, err
	}
	in := &inserter{cfg: cfg, timeout: timeout}
	if cfg.Protocol == clickhouse.Native {
		in.idle = make(chan *ch.Client, cfg.MaxOpenConns)
		in.opts = ch.Options{
			Address: cfg.Addr, Database: cfg.Database, User: cfg.User, Password: cfg.Password,
			DialTimeout: cfg.DialTimeout, ReadTimeout: timeout, TLS: tlsConfig, ClientName: "kanjo",
		}
		return in, nil
	}
	in.bufs.New = func() any { return new(proto.Buffer) }
	in.base = url.URL{Scheme: "http", Host: cfg.Addr, Path: "/"}
	if tlsConfig != nil {
		in.base.Scheme = "https"
	}
	in.client = &http.Client{Transport: &http.Transport{
		TLSClientConfig: tlsConfig, MaxIdleConnsPerHost: cfg.MaxOpenConns, MaxConnsPerHost: cfg.MaxOpenConns,
		IdleConnTimeout: time.Minute, DisableCompression: true,
	}}
	return in, nil
}

func (in *inserter) close() {
	if in.client != nil {
		in.client.CloseIdleConnections()
	}
	for in.idle != nil {
		select {
		case c := <-in.idle:
			_ = c.Close() // Nothing is under way on it.
		default:
			return
		}
	}
}

// insert stores the block. A nil error says that every row is on disk, or was already there under the same token. After
// any error the outcome is unknown and the same call must be made again.
func (in *inserter) insert(ctx context.Context, table string, block proto.Input, token string) error {
	ctx, cancel := context.WithTimeout(ctx, in.timeout)
	defer cancel()
	var err error
	if in.client != nil {
		err = in.overHTTP(ctx, table, block, token)
	} else {
		err = in.overTCP(ctx, table, block, token)
	}
	if err != nil {
		return fmt.Errorf("insert %d rows into %s with token %s: %w", block[0].Data.Rows(), table, token, err)
	}
	return nil
}

func columnList(block proto.Input) string {
	names := make([]string, len(block))
	for i, c := range block {
		names[i] = c.Name
	}
	return "(" + strings.Join(names, ", ") + ")"
}

func (in *inserter) overHTTP(ctx context.Context, table string, block proto.Input, token string) error {
	buf := in.bufs.Get().(*proto.Buffer)
	defer in.bufs.Put(buf)
	buf.Reset()
	b := proto.Block{Columns: len(block), Rows: block[0].Data.Rows()}
	const revision = 0 // what FORMAT Native means without a client protocol version
	if err := b.EncodeRawBlock(buf, revision, block); err != nil {
		return fmt.Errorf("encode: %w", err)
	}

	query := url.Values{"database": {in.cfg.Database}, "query": {"INSERT INTO " + table + " " + columnList(block) + " FORMAT Native"}}
	for name, value := range insertSettings(token) {
		query.Set(name, value)
	}
	target := in.base
	target.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(buf.Buf))
	if err != nil {
		return err
	}
	req.Header.Set("X-ClickHouse-User", in.cfg.User)
	if in.cfg.Password != "" {
		req.Header.Set("X-ClickHouse-Key", in.cfg.Password)
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := in.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	// An insert has no result: whatever stands in the body is an error, also under status 200, which a server may have sent
	// before it failed.
	const answerMax = 64 << 10
	answer, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	text := strings.TrimSpace(string(answer))
	code, _ := strconv.Atoi(resp.Header.Get("X-ClickHouse-Exception-Code"))
	if resp.StatusCode != http.StatusOK || code != 0 || text != "" {
		return &insertError{code: code, text: fmt.Sprintf("status %d: %s", resp.StatusCode, text)}
	}
	return nil
}

func (in *inserter) overTCP(ctx context.Context, table string, block proto.Input, token string) error {
	var conn *ch.Client
	select {
	case conn = <-in.idle:
	default:
	}
	if conn == nil || conn.IsClosed() {
		var err error
		if conn, err = ch.Dial(ctx, in.opts); err != nil {
			return err
		}
	}
	q := ch.Query{Body: "INSERT INTO " + table + " " + columnList(block) + " VALUES", Input: block}
	for name, value := range insertSettings(token) {
		// Important: a server that does not know a setting the guarantee rests on must refuse, not ignore it.
		q.Settings = append(q.Settings, ch.Setting{Key: name, Value: value, Important: true})
	}
	if err := conn.Do(ctx, q); err != nil {
		_ = conn.Close() // What is left on the connection is unknown; the insert's own error says more.
		if e, ok := errors.AsType[*ch.Exception](err); ok {
			return &insertError{code: int(e.Code), text: e.Error()}
		}
		return err
	}
	select {
	case in.idle <- conn:
	default:
		_ = conn.Close() // More connections than are kept: nothing is under way on it.
	}
	return nil
}

// chunks groups the records of a batch so that each group's rows fall into at most monthsMax table partitions. The result
// depends on the records alone, and all rows of one month are in one group.
func chunks[R any](records []R, monthOf func(R) (int, error), most int) ([][]R, error) {
	byMonth := make(map[int][]R)
	for _, r := range records {
		m, err := monthOf(r)
		if err != nil {
			return nil, err
		}
		byMonth[m] = append(byMonth[m], r)
	}
	months := make([]int, 0, len(byMonth))
	for m := range byMonth {
		months = append(months, m)
	}
	slices.Sort(months)
	var out [][]R
	for group := range slices.Chunk(months, most) {
		var rs []R
		for _, m := range group {
			rs = append(rs, byMonth[m]...)
		}
		out = append(out, rs)
	}
	return out, nil
}
