package rater

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func TestAMonthBeforeATenantWasPublishedUsesUpNoNumber(t *testing.T) {
	w := newWorld(t, controlPlane(t, 3))
	at := time.Date(2026, 8, 5, 0, 0, 0, 0, time.UTC) // July has ended
	for i := range 2 {
		d := doc(control.KindTenant, tenantName(i), 1, "", testTenant("Asia/Tokyo", "standard"))
		value, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		r := &kgo.Record{Topic: schemas.TopicControl, Key: []byte(d.Key()), Value: value, Timestamp: at}
		if err := w.client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	w.send(usage(0, "1", july, 100, 0, ""))
	for _, dry := range []bool{true, false} {
		if r := w.close(Options{Period: "2026-07", DryRun: dry}); r.Tenants[1].Status != NotYet || r.Err() != nil {
			t.Errorf("dry run %v: %s, %v", dry, statuses(r), r.Err())
		}
	}
	if docs := w.documents(); len(docs) != 2 || docs[0].Envelope.Tenant != tenantName(0) || docs[1].Envelope.Tenant != tenantName(2) {
		t.Errorf("%d documents, want those of the tenant that used something and of the one that was there before the topic", len(docs))
	}

	newcomers := []string{tenantName(0), tenantName(1)}
	if r := w.close(Options{Period: "2026-06", Tenants: newcomers}); r.Count(NotYet) != 2 || !errors.Is(r.Err(), ErrPeriod) {
		t.Errorf("a month before all tenants: %s, %v", statuses(r), r.Err())
	}
	for _, period := range []string{"1999-01", "2025-07"} {
		if r, err := w.tryClose(Options{Period: period}); !errors.Is(err, ErrPeriod) {
			t.Errorf("%s: %s, %v", period, statuses(r), err)
		}
	}
	if n := len(w.documents()); n != 2 {
		t.Errorf("%d documents after months that are refused", n)
	}
	if r := w.close(Options{Period: "2025-07", Tenants: []string{tenantName(2)}, AllowOld: true}); r.Count(Issued) != 1 {
		t.Errorf("an old month that is meant: %s", statuses(r))
	}
	// The tenant that had no cut yet has one as soon as it has usage.
	w.send(usage(1, "2", july, 100, 0, ""))
	if r := w.close(Options{Period: "2026-07"}); r.Tenants[1].Status != Issued {
		t.Errorf("with late usage: %s", statuses(r))
	}
}
