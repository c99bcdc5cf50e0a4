// Package controlplane turns a directory of YAML files into control documents on kanjo.control.
//
// It reads YAML files and kanjo.control; it writes kanjo.control (record key kind/name/version, one partition).
//
// The guarantee: a set of documents is published whole or not at all, in one transaction of the transactional id
// kanjo-apply, so that two applies never interleave; a version that stands is never changed; applying what already holds
// writes nothing. It does not guarantee that stages have followed when Publish returns: they do so within moments.
//
// When Kafka is down nothing is published and Publish says so; running it again is always safe, also after an answer that
// was lost.
//
// Open set.go first, then check.go for the rules and plan.go for versions and effective times.
package controlplane
