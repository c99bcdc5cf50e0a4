// Package dev runs the whole of Kanjo on one machine: a Kafka broker in process, Redis and the ClickHouse engine as child
// processes, and every stage. Its state is in one directory and survives a stop, a crash and SIGKILL.
//
// It is for trying, developing and demonstrating. Production runs each stage as a process of its own beside real
// brokers; the code of the stages is the same.
package dev
