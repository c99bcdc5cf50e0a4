package counters

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/schemas/control"
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

// Kind is the kind of a counter's window: one of the constants, or what SlidingKind returns.
type Kind uint32

// The kinds. Total has no window: it counts since ever.
const (
	Hour  Kind = 'h'
	Day   Kind = 'd'
	Week  Kind = 'w'
	Month Kind = 'm'
	Total Kind = 't'
	// Billing is the period that one invoice of the tenant is made for: a month from the anchor day of its contract on.
	Billing Kind = 'b'

	sliding Kind = 's' // the lowest byte of a sliding window's kind; the others are its length in minutes
)

var kindNames = map[Kind]string{Hour: "hour", Day: "day", Week: "week", Month: "month", Total: "total", Billing: "billing_period"}

// SlidingKind returns the kind of the counters of a sliding window's parts. The length has whole minutes, so that a part, a sixtieth of it, has
// whole seconds. Parts begin at multiples of their length since 1970.
func SlidingKind(length time.Duration) Kind { return sliding | Kind(length/time.Minute)<<8 }

// part returns how long a part of a sliding window is, zero for any other kind.
func (k Kind) part() time.Duration {
	if k&0xff != sliding {
		return 0
	}
	return time.Duration(k>>8) * time.Minute / control.SlidingParts
}

// length returns the length of a sliding window.
func (k Kind) length() time.Duration { return k.part() * control.SlidingParts }

// String returns the word that limits use for the kind.
func (k Kind) String() string {
	if name, ok := kindNames[k]; ok {
		return name
	}
	if k.part() > 0 {
		return "sliding:" + control.Duration(k.length()).String()
	}
	return fmt.Sprintf("kind(%d)", uint32(k))
}

// code is the kind as keys have it: a letter, and the minutes of a sliding window.
func (k Kind) code() string {
	if k.part() > 0 {
		return "s" + strconv.Itoa(int(k>>8))
	}
	return string(rune(k))
}

func parseKindCode(s string) (Kind, bool) {
	if len(s) == 1 {
		_, ok := kindNames[Kind(s[0])]
		return Kind(s[0]), ok
	}
	minutes, ok := strings.CutPrefix(s, "s")
	n, err := strconv.ParseUint(minutes, 10, 16)
	k := sliding | Kind(n)<<8
	return k, ok && err == nil && n > 0 && k.code() == s
}

// ParseKind returns the kind of the counters that a limit's window is tested against: for all but concurrency and throttles, which no counter of
// the log serves.
func ParseKind(window string) (Kind, error) {
	w, err := control.ParseWindow(window)
	if err != nil {
		return 0, err
	}
	switch w.Kind {
	case control.WindowSliding:
		return SlidingKind(w.Length), nil
	case control.WindowConcurrency, control.WindowThrottle:
		return 0, fmt.Errorf("window %q: the log has no counter of it", window)
	}
	for kind, name := range kindNames {
		if name == window {
			return kind, nil
		}
	}
	return 0, fmt.Errorf("window %q: no counter is kept of it", window)
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
	b = append(b, "c:"...)
	b = append(b, id.Kind.code()...)
	b = append(b, ':')
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
	if len(key) < prefix || key[prefix-2:prefix] != "c:" {
		return bad("prefix")
	}
	code, rest, _ := strings.Cut(key[prefix:], ":")
	var id ID
	var ok bool
	if id.Kind, ok = parseKindCode(code); !ok {
		return bad("kind")
	}
	start, rest, ok := strings.Cut(rest, ":")
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

// slidingKey is the key of what admission knows of a sliding window: what is held, and by part what is pending.
func slidingKey(id ID) string {
	return fmt.Sprintf("%sw:%s:%d:%s:%d:%s:%d:%s:%d:%s", bucketKey(Bucket(id.Tenant)), id.Kind.code(),
		len(id.Tenant), id.Tenant, len(id.Metric), id.Metric, len(id.Dimension), id.Dimension, len(id.Subject), id.Subject)
}

// throttleKey is the key of a limit's throttle. It goes by the limit and not by what is counted, for two rates of one series have two times.
func throttleKey(tenant, limit, subject string) string {
	return fmt.Sprintf("%sg:%d:%s:%d:%s:%d:%s", bucketKey(Bucket(tenant)), len(tenant), tenant, len(limit), limit, len(subject), subject)
}

// seenKey is the key of a message that was seen.
func seenKey(tenant, message string) string {
	return fmt.Sprintf("%sm:%d:%s:%d:%s", bucketKey(Bucket(tenant)), len(tenant), tenant, len(message), message)
}
