package counters

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Buckets is the number of buckets that tenants hash into. It is fixed for ever: another number would send a tenant's
// counters elsewhere.
const Buckets = 256

// Bucket returns the tenant's bucket: the first byte of the SHA-256 of its name.
func Bucket(tenant string) uint8 {
	sum := sha256.Sum256([]byte(tenant))
	return sum[0]
}

// bucketKey starts every key of a bucket. The hash tag keeps the bucket in one slot of a Cluster; Redis takes the first
// braces of a key, so braces in a tenant's name change nothing.
func bucketKey(bucket uint8) string { return fmt.Sprintf("kanjo:{k:%03d}:", bucket) }

func stateKey(bucket uint8) string { return bucketKey(bucket) + "state" }

// Kind is the kind of a counter's window.
type Kind byte

// The kinds. Total has no window: it counts since ever.
const (
	Hour  Kind = 'h'
	Day   Kind = 'd'
	Week  Kind = 'w'
	Month Kind = 'm'
	Total Kind = 't'
)

var kindNames = map[Kind]string{Hour: "hour", Day: "day", Week: "week", Month: "month", Total: "total"}

// String returns the word that limits use for the kind.
func (k Kind) String() string {
	if name, ok := kindNames[k]; ok {
		return name
	}
	return fmt.Sprintf("kind(%q)", byte(k))
}

// ParseKind reads hour, day, week, month or total.
func ParseKind(name string) (Kind, error) {
	for kind, n := range kindNames {
		if n == name {
			return kind, nil
		}
	}
	return 0, fmt.Errorf("window %q: want hour, day, week, month or total", name)
}

// ID identifies a counter: what is counted of whom in which window. It is all that a limit needs to find its count, so
// changing a limit's maximum never resets one.
type ID struct {
	Tenant, Metric string
	// Dimension and Subject name the part of the tenant that is counted, such as user and u-17. Both empty is
	// the whole tenant.
	Dimension, Subject string
	Kind               Kind
	// Zone is the IANA name by which the window was computed, and Start its first instant. Total has neither.
	Zone  string
	Start time.Time
}

// Key returns the counter's key in Redis. Every part that others choose is written with its length in front, so that no
// two counters share a key whatever their names contain; the key stays readable for an operator.
func (id ID) Key() string {
	return string(id.appendKey(make([]byte, 0, 96+len(id.Tenant)+len(id.Metric)+len(id.Dimension)+len(id.Subject))))
}

func (id ID) appendKey(b []byte) []byte {
	b = append(b, bucketKey(Bucket(id.Tenant))...)
	b = append(b, 'c', ':', byte(id.Kind), ':')
	if id.Kind != Total {
		b = strconv.AppendInt(b, id.Start.Unix(), 10)
	}
	for _, part := range [...]string{id.Zone, id.Tenant, id.Metric, id.Dimension, id.Subject} {
		b = append(b, ':')
		b = strconv.AppendInt(b, int64(len(part)), 10)
		b = append(b, ':')
		b = append(b, part...)
	}
	return b
}

var errNotCounter = errors.New("not the key of a counter")

// ParseKey reads what Key wrote.
func ParseKey(key string) (ID, error) {
	bad := func(why string) (ID, error) { return ID{}, fmt.Errorf("key %q: %w: %s", key, errNotCounter, why) }
	const prefix = len("kanjo:{k:000}:c:")
	if len(key) < prefix+2 || key[prefix-2:prefix] != "c:" || key[prefix+1] != ':' {
		return bad("prefix")
	}
	id := ID{Kind: Kind(key[prefix])}
	if _, ok := kindNames[id.Kind]; !ok {
		return bad("kind")
	}
	start, rest, ok := strings.Cut(key[prefix+2:], ":")
	if !ok {
		return bad("start")
	}
	if id.Kind != Total {
		unix, err := strconv.ParseInt(start, 10, 64)
		if err != nil {
			return bad("start")
		}
		id.Start = time.Unix(unix, 0).UTC()
	}
	for i, part := range [...]*string{&id.Zone, &id.Tenant, &id.Metric, &id.Dimension, &id.Subject} {
		length, tail, ok := strings.Cut(rest, ":")
		n, err := strconv.Atoi(length)
		if !ok || err != nil || n < 0 || n > len(tail) {
			return bad("length")
		}
		*part, rest = tail[:n], tail[n:]
		if i < 4 {
			if rest, ok = strings.CutPrefix(rest, ":"); !ok {
				return bad("separator")
			}
		}
	}
	if rest != "" || id.Key() != key {
		return bad("form")
	}
	return id, nil
}

// reservationKey is the key of a reservation's record, in the bucket of its tenant.
func reservationKey(tenant, reservation string) string {
	return fmt.Sprintf("%sr:%d:%s:%d:%s", bucketKey(Bucket(tenant)), len(tenant), tenant, len(reservation), reservation)
}

// holdsKey is the key of a bucket's live holds, sorted by when they expire.
func holdsKey(bucket uint8) string { return bucketKey(bucket) + "holds" }

// concurrencyKey is the key of a counter of what is held at once. It is no counter of the log, so it is none of those that ParseKey reads.
func concurrencyKey(tenant, metric, dimension, subject string) string {
	return fmt.Sprintf("%sn:%d:%s:%d:%s:%d:%s:%d:%s", bucketKey(Bucket(tenant)), len(tenant), tenant, len(metric), metric, len(dimension), dimension, len(subject), subject)
}

// seenKey is the key of a message that was seen.
func seenKey(tenant, message string) string {
	return fmt.Sprintf("%sm:%d:%s:%d:%s", bucketKey(Bucket(tenant)), len(tenant), tenant, len(message), message)
}
