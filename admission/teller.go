package admission

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"slices"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// Crossing says that what is used and pending of a limit has reached a threshold.
type Crossing struct {
	// ID is made of the limit, whom it counts, the window, its maximum and the threshold, and of nothing else: a crossing that is told again, after a
	// crash or because the counters were built anew, is known by it.
	ID      string // 32 hexadecimal digits
	Tenant  string
	Rule    Rule
	Window  calendar.Interval // zero for a total
	Zone    string
	Percent int
	// Maximum, Used and Pending are in the metric's smallest unit; Maximum includes what is granted.
	Maximum, Used, Pending int64
	Scale                  uint8 // of the metric
}

// Announcer tells of crossings. It returns nil when all are where they cannot be lost.
type Announcer interface {
	Announce(ctx context.Context, list []Crossing) error
}

// TouchedCounters is the queue of counters that may have reached a threshold; *counters.Touches is one.
type TouchedCounters interface {
	Next(ctx context.Context) ([]counters.Touched, error)
	Told(ctx context.Context, c *counters.Touched, name string) (string, error)
	Tell(ctx context.Context, c *counters.Touched, name, what string) error
	Forget(ctx context.Context, list []counters.Touched) error
	Lease(ctx context.Context, owner string, life time.Duration) (bool, error)
}

// Teller watches the queue and tells of thresholds that were reached. Several may run: one at a time works.
//
// Nothing is lost by a crash. A counter is in the queue before it is changed, and leaves it only when it has not been touched for a while and all
// that it has reached is told; that it was told is recorded on it after the announcer has said so.
type Teller struct {
	control counters.Directories
	touched TouchedCounters
	out     Announcer
	grace   counters.Grace
	log     *slog.Logger
	owner   string
	every   time.Duration
	book    *Book
}

// NewTeller returns a Teller that looks every so often; zero is 2 s. grace must be the sink's.
func NewTeller(control counters.Directories, touched TouchedCounters, out Announcer, grace counters.Grace, every time.Duration, log *slog.Logger) *Teller {
	if every == 0 {
		every = 2 * time.Second
	}
	return &Teller{control: control, touched: touched, out: out, grace: grace, log: log, owner: rand.Text(), every: every}
}

// Run works until ctx ends.
func (t *Teller) Run(ctx context.Context) {
	ill := false
	for {
		err := t.turn(ctx)
		if ctx.Err() != nil {
			return
		}
		if (err != nil) != ill { // said when it changes
			if ill = err != nil; ill {
				t.log.Warn("admission: thresholds that were reached are told later", "error", err)
			} else {
				t.log.Info("admission: thresholds are told again")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(t.every):
		}
	}
}

// turn tells what is in the queue now.
func (t *Teller) turn(ctx context.Context) error {
	dir := t.control.Current()
	if dir == nil {
		return nil
	}
	// The lease outlives the longest turn of a healthy owner.
	mine, err := t.touched.Lease(ctx, t.owner, 5*t.every+10*time.Second)
	if err != nil || !mine {
		return err
	}
	if t.book == nil || t.book.dir != dir {
		if t.book, err = NewBook(dir, t.grace); err != nil {
			return err
		}
	}
	list, err := t.touched.Next(ctx)
	if err != nil {
		return err
	}
	var done []counters.Touched
	var failed []error
	for i := range list {
		c := &list[i]
		if err := t.tell(ctx, c); err != nil {
			failed = append(failed, err)
			if errors.Is(err, errNotAnnounced) {
				break // nor will the others be
			}
			continue
		}
		done = append(done, *c)
	}
	return errors.Join(append(failed, t.touched.Forget(ctx, done))...)
}

var errNotAnnounced = errors.New("not announced")

// tell tells every threshold that the counter has reached and that was not told.
func (t *Teller) tell(ctx context.Context, c *counters.Touched) error {
	rules, err := t.book.watching(c.ID, time.Now())
	if err != nil {
		return err
	}
	for _, r := range rules {
		reached := reachedBy(r, c.Used+c.Pending)
		if len(reached) == 0 {
			continue
		}
		was, err := t.touched.Told(ctx, c, r.Name)
		if err != nil {
			return err
		}
		var maximum int64
		var percent int
		if _, err := fmt.Sscanf(was, "%d %d", &maximum, &percent); err != nil || maximum != *r.Maximum {
			percent = 0 // nothing was told, or of another maximum
		}
		reached = slices.DeleteFunc(reached, func(p int) bool { return p <= percent })
		if len(reached) == 0 {
			continue
		}
		list := make([]Crossing, len(reached))
		for i, p := range reached {
			list[i] = t.crossing(r, c, p)
		}
		if err := t.out.Announce(ctx, list); err != nil {
			return fmt.Errorf("limit %q of tenant %q: %w: %w", r.Name, c.ID.Tenant, errNotAnnounced, err)
		}
		// Also when ctx has ended meanwhile: it is told already.
		if err := t.touched.Tell(context.WithoutCancel(ctx), c, r.Name, fmt.Sprintf("%d %d", *r.Maximum, slices.Max(reached))); err != nil {
			return err
		}
	}
	return nil
}

// reachedBy returns the thresholds that a count has reached: 100 × count >= percent × maximum, in 128 bits.
func reachedBy(r Rule, count int64) []int {
	var out []int
	hi, lo := bits.Mul64(uint64(max(0, count)), 100)
	for _, p := range r.Thresholds {
		if h, l := bits.Mul64(uint64(*r.Maximum), uint64(p)); hi > h || hi == h && lo >= l {
			out = append(out, p)
		}
	}
	return out
}

func (t *Teller) crossing(r Rule, c *counters.Touched, percent int) Crossing {
	out := Crossing{Tenant: c.ID.Tenant, Rule: r, Percent: percent, Maximum: *r.Maximum, Used: c.Used, Pending: c.Pending, Zone: c.ID.Zone}
	if zones, err := t.book.calendar(c.ID.Tenant); err == nil && c.ID.Kind != counters.Total {
		out.Window = zones.At(c.ID, c.ID.Start).Window
	}
	if m, ok := t.book.dir.Metric(c.ID.Metric, time.Now()); ok {
		out.Scale = m.ResultScale()
	} else if isMoney(c.ID.Metric) {
		out.Scale = microScale
	}
	h := sha256.New()
	for _, part := range []string{
		r.Name, c.ID.Tenant, c.ID.Metric, c.ID.Dimension, c.ID.Subject, c.ID.Kind.String(), c.ID.Zone, fmt.Sprint(c.ID.Start.Unix()), fmt.Sprint(*r.Maximum), fmt.Sprint(percent),
	} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	out.ID = hex.EncodeToString(h.Sum(nil)[:16])
	return out
}

// watching returns the limits that tell of thresholds of a counter.
func (b *Book) watching(id counters.ID, now time.Time) ([]Rule, error) {
	tenant, ok := b.dir.Tenant(id.Tenant, now)
	if !ok {
		return nil, nil // gone meanwhile
	}
	ask := Ask{Tenant: id.Tenant, Amounts: map[string]int64{id.Metric: 1}}
	if id.Dimension != "" {
		ask.Subjects = map[string]string{id.Dimension: id.Subject}
	}
	rules, err := b.rules(ask, tenant, now, false)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(rules, func(r Rule) bool {
		kind, err := counters.ParseKind(r.Limit.Window)
		return err != nil || kind != id.Kind || r.Per != id.Dimension || r.Subject != id.Subject || len(r.Thresholds) == 0 || *r.Maximum < 1
	}), nil
}
