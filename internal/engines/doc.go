// Package engines starts and stops the real engines, Kafka, ClickHouse, Redis and PostgreSQL, as child processes:
// for tests, benchmarks and `kanjo dev`.
//
// hack/fetch-engines.sh (`make engines`) brings them. A test calls KafkaForTest and its siblings, which start the
// engine or fail the test, never skip it. A program calls StartKafka and its siblings. main, and TestMain of
// packages that start ClickHouse, call RunChild first, because the ClickHouse child is the program itself.
//
// What holds: an engine dies with the process that started it, however that dies. Kill is a real SIGKILL and leaves
// the data as a crash does; Restart takes up the same data on the same port, which nobody else of ours can take
// meanwhile. An engine runs in a process group of its own, so a Ctrl-C reaches the program alone.
//
// Linux only. Read process.go first; the other files each hold one engine.
package engines
