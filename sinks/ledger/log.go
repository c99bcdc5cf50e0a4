package ledger

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/rater/readlog"
	"github.com/kanjo-dev/kanjo/schemas"
)

// Epoch returns the number that the ledger gave to the present incarnation of usage.unique.
func Epoch(ctx context.Context, conn driver.Conn, cl *kgo.Client) (uint32, error) {
	topics, err := kadm.NewClient(cl).ListTopics(ctx, schemas.TopicUnique)
	if err == nil {
		err = topics[schemas.TopicUnique].Err
	}
	if err != nil {
		return 0, fmt.Errorf("look up topic %s: %w (kanjo migrate creates the topics)", schemas.TopicUnique, err)
	}
	id := topics[schemas.TopicUnique].ID
	var epoch uint32
	err = conn.QueryRow(ctx, "SELECT min(epoch) FROM log_epochs WHERE topic = ? AND topic_id = ?", schemas.TopicUnique, hex.EncodeToString(id[:])).Scan(&epoch)
	if err != nil {
		return 0, fmt.Errorf("read table log_epochs: %w", err)
	}
	if epoch == 0 {
		return 0, fmt.Errorf("the ledger has never read this %s: start kanjo ledger and try again", schemas.TopicUnique)
	}
	return epoch, nil
}

// auditedLog is the incarnation of usage.unique that Kafka holds.
type auditedLog struct {
	kafka        kafka.Config
	epoch        uint32
	starts, ends map[int32]int64
}

// openLog returns nil when the audit is not to look at the log, and sets the options' epoch to that of the log unless they name one.
func openLog(ctx context.Context, conn driver.Conn, opts *AuditOptions) (*auditedLog, error) {
	if opts.Kafka == nil || len(opts.Until) == 0 {
		return nil, nil
	}
	cl, err := opts.Kafka.NewClient()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	log := &auditedLog{kafka: *opts.Kafka}
	if log.epoch, err = Epoch(ctx, conn, cl); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	if log.starts, log.ends, err = readlog.Ends(ctx, cl, schemas.TopicUnique); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	if opts.Epoch == 0 {
		opts.Epoch = log.epoch
	}
	return log, nil
}

// gap is a range of offsets that no manifest covers.
type gap struct{ first, end int64 }

// gaps returns the ranges of [from, until) that no manifest covers and in which a transaction can be missing. One offset alone
// is the marker of the transaction before it: a missing one has a record and a marker of its own.
func (a audited) gaps(ctx context.Context, conn driver.Conn, from int64) ([]gap, error) {
	const covering = `
		SELECT DISTINCT first_offset, last_offset
		FROM manifests WHERE unique_epoch = ? AND partition = ? AND last_offset >= ? AND first_offset < ?`
	rows, err := conn.Query(ctx, `
		SELECT greatest(covered, ?) AS first, next FROM (
			SELECT first_offset AS next, if(count() OVER before = 0, 0, max(last_offset) OVER before + 1) AS covered
			FROM (`+covering+`)
			WINDOW before AS (ORDER BY first_offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
			UNION ALL
			SELECT toInt64(?) AS next, if(count() = 0, 0, max(last_offset) + 1) AS covered FROM (`+covering+`)
		)
		WHERE next - first > 1 ORDER BY first`,
		from, a.epoch, a.partition, from, a.until, a.until, a.epoch, a.partition, from, a.until)
	if err != nil {
		return nil, fmt.Errorf("look for offsets without a manifest: %w", err)
	}
	defer rows.Close()
	var out []gap
	for rows.Next() {
		var g gap
		if err := rows.Scan(&g.first, &g.end); err != nil {
			return nil, fmt.Errorf("look for offsets without a manifest: %w", err)
		}
		out = append(out, g)
	}
	return out, rows.Err()
}

// unrecorded adds the records of the log from out.From to until that the ledger lacks with their manifests, and moves out.Proven
// back to the first of them. Rows that are there without a manifest are not lost: the manifest may be on its way.
func (a audited) unrecorded(ctx context.Context, conn driver.Conn, log *auditedLog, out *PartitionReport) error {
	if log == nil || a.epoch != log.epoch {
		return nil // Nothing but the ledger is left of an incarnation that is gone.
	}
	gaps, err := a.gaps(ctx, conn, out.From)
	if err != nil {
		return err
	}
	start, end := log.starts[a.partition], log.ends[a.partition]
	for _, g := range gaps {
		// Below the log's start the proof of an earlier audit must do.
		if first, end := max(g.first, a.proven), min(g.end, start); first < end {
			out.lose(Finding{Kind: FoundExpired, First: first, Last: end - 1})
		}
		g = gap{max(g.first, start), min(g.end, end)}
		if g.first >= g.end {
			continue
		}
		missing, err := a.lacking(ctx, conn, log, g)
		if err != nil {
			return err
		}
		if len(missing) > 0 {
			f := Finding{Kind: FoundUnrecorded, First: missing[0], Last: missing[len(missing)-1]}
			f.list(missing)
			out.lose(f)
		}
		if len(out.Losses) >= findingsMax {
			return nil
		}
	}
	return nil
}

func (out *PartitionReport) lose(f Finding) {
	out.Losses = append(out.Losses, f)
	out.Proven = min(out.Proven, f.First)
}

// The bounds of what is read of a gap: how many records are looked up at once, and after how many that are missing the
// rest need not be read.
const (
	lookUp  = 10_000
	missMax = 100_000
)

// lacking returns the offsets of the log's records in a gap that have no row in the ledger.
func (a audited) lacking(ctx context.Context, conn driver.Conn, log *auditedLog, g gap) ([]int64, error) {
	var missing, offsets []int64
	check := func() error {
		if len(offsets) == 0 {
			return nil
		}
		there, err := a.offsets(ctx, conn, offsets[0], offsets[len(offsets)-1])
		if err != nil {
			return err
		}
		for _, o := range offsets {
			if _, found := slices.BinarySearch(there, o); !found {
				missing = append(missing, o)
			}
		}
		offsets = offsets[:0]
		return nil
	}
	at := func(offset int64) map[int32]int64 { return map[int32]int64{a.partition: offset} }
	err := readlog.Range(ctx, log.kafka, schemas.TopicUnique, at(g.first), at(g.end), func(r *kgo.Record) error {
		offsets = append(offsets, r.Offset)
		if len(offsets) < lookUp {
			return nil
		}
		if err := check(); err != nil {
			return err
		}
		if len(missing) >= missMax {
			return readlog.ErrStop
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for records of %s without a manifest: %w", schemas.TopicUnique, err)
	}
	return missing, check()
}

// offsets returns the offsets from first to last of which the ledger has a row, ascending.
func (a audited) offsets(ctx context.Context, conn driver.Conn, first, last int64) ([]int64, error) {
	rows, err := conn.Query(ctx, `SELECT DISTINCT log_offset FROM usage_events
		WHERE log_epoch = ? AND log_partition = ? AND log_offset >= ? AND log_offset <= ? ORDER BY log_offset`, a.epoch, a.partition, first, last)
	if err != nil {
		return nil, fmt.Errorf("list the offsets of a range: %w", err)
	}
	defer rows.Close()
	var out []int64
	for rows.Next() {
		var o int64
		if err := rows.Scan(&o); err != nil {
			return nil, fmt.Errorf("list the offsets of a range: %w", err)
		}
		out = append(out, o)
	}
	return out, rows.Err()
}
