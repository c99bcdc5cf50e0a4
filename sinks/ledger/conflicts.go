package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/shopspring/decimal"

	"github.com/kanjo-dev/kanjo/schemas"
)

// Version is one of the two contents of a conflict.
type Version struct {
	Tenant     string                     `json:"tenant"`
	OccurredAt time.Time                  `json:"occurred_at"`
	IngestedAt time.Time                  `json:"ingested_at"`
	Quantities map[string]decimal.Decimal `json:"quantities"`
	Dimensions map[string]string          `json:"dimensions"`
	Digest     string                     `json:"digest"`
	Origin     string                     `json:"origin"` // topic/partition/offset of the raw record
}

// ConflictingEvent is an event that came with the identity of another and a different content. It counts nowhere; what stands does.
type ConflictingEvent struct {
	Source string `json:"source"`
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	Type   string `json:"type"`
	Version
	Standing Version `json:"standing"`
}

// ConflictQuery selects conflicts, newest first. A zero field does not restrict; Limit 0 is 100.
type ConflictQuery struct {
	Tenant string
	Source string
	Origin string // topic/partition/offset of the raw record that is in conflict
	Limit  int
}

// ListConflicts returns conflicts, each raw record once.
func ListConflicts(ctx context.Context, conn driver.Conn, q ConflictQuery) ([]ConflictingEvent, error) {
	const limitDefault = 100
	if q.Limit <= 0 {
		q.Limit = limitDefault
	}
	rows, err := conn.Query(ctx, `SELECT source, id, toString(kind), type,
			tenant, occurred_at, ingested_at, quantities, dimensions, digest, origin,
			standing_tenant, standing_occurred_at, standing_ingested_at, standing_quantities, standing_dimensions, standing_digest, standing_origin
		FROM conflicts WHERE (? = '' OR tenant = ?) AND (? = '' OR source = ?) AND (? = '' OR origin = ?)
		ORDER BY ingested_at DESC, source, id LIMIT ?`, q.Tenant, q.Tenant, q.Source, q.Source, q.Origin, q.Origin, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("list the conflicts: %w", err)
	}
	defer rows.Close()
	out := []ConflictingEvent{}
	for rows.Next() {
		var c ConflictingEvent
		if err := rows.Scan(append(append([]any{&c.Source, &c.ID, &c.Kind, &c.Type}, c.fields()...), c.Standing.fields()...)...); err != nil {
			return nil, fmt.Errorf("list the conflicts: %w", err)
		}
		out = append(out, c)
	}
	return out, rows.Err()
}

func (v *Version) fields() []any {
	return []any{&v.Tenant, &v.OccurredAt, &v.IngestedAt, &v.Quantities, &v.Dimensions, &v.Digest, &v.Origin}
}

// ShowConflict returns the conflict of a raw record. When there is none the error matches ErrNotFound.
func ShowConflict(ctx context.Context, conn driver.Conn, origin schemas.Origin) (*ConflictingEvent, error) {
	list, err := ListConflicts(ctx, conn, ConflictQuery{Origin: origin.String(), Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("conflict of the raw record %s: %w", origin, ErrNotFound)
	}
	return &list[0], nil
}
