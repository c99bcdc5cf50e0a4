// Package chdb is the real ClickHouse engine in one process: libchdb behind the ClickHouse HTTP interface.
//
// It exists so that tests, benchmarks and `kanjo dev` run on the engine that production runs on, without Docker and
// without a server to install. clickhouse-go (Protocol: clickhouse.HTTP) and curl talk to it as they would to a
// server:
//
//	curl 'http://127.0.0.1:8123/?query=SELECT+version()'
//
// Serve is what a child process runs (see package engines); Server is the http.Handler in it; Engine, Conn, Rows
// and Inserter are libchdb, loaded without cgo. The package needs glibc at run time, and libchdb.so, which
// hack/fetch-engines.sh brings.
//
// What holds: a statement runs on a connection of its own, with the settings of its request and nothing left from
// another. An INSERT in Native keeps the client's blocks, so one block is one atomic part per partition and an
// insert_deduplication_token means what it means on a server. Results of SELECT are streamed in the formats without
// head and foot (Native, RowBinary, CSV, TabSeparated, JSONEachRow); other formats stand in memory once. A query
// whose client went away is killed. Data survives SIGKILL as ClickHouse's does.
//
// What does not: no users, roles or row policies (every user name and password is accepted, so listen on loopback
// only), no native TCP, no sessions, no external tables, no progress, and one process per data directory.
//
// Read server.go first, then native.go for the one thing that is not plain forwarding.
package chdb
