package gateway

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/admission"
	"github.com/kanjo-dev/kanjo/schemas"
)

// noticeSource is the CloudEvents source of what the gateway itself has to say.
const noticeSource = "/kanjo/limits"

// notice is a CloudEvent of kanjo.notices.
type notice struct {
	SpecVersion     string        `json:"specversion"`
	Type            string        `json:"type"`
	Source          string        `json:"source"`
	ID              string        `json:"id"`
	Subject         string        `json:"subject"` // the limit
	Time            time.Time     `json:"time"`    // when it was noticed
	DataContentType string        `json:"datacontenttype"`
	Data            thresholdData `json:"data"`
}

// thresholdData has quantities as exact decimals in the metric's unit.
type thresholdData struct {
	Limit     string     `json:"limit"`
	Tenant    string     `json:"tenant"`
	Metric    string     `json:"metric"`
	Per       string     `json:"per,omitempty"`
	Subject   string     `json:"subject,omitempty"`
	Window    string     `json:"window"`
	Zone      string     `json:"zone,omitempty"`
	Start     *time.Time `json:"start,omitempty"`
	End       *time.Time `json:"end,omitempty"`
	Mode      string     `json:"mode"`
	Threshold int        `json:"threshold"` // per cent
	Maximum   string     `json:"maximum"`
	Used      string     `json:"used"`
	Pending   string     `json:"pending"`
}

// announcer writes crossings to kanjo.notices.
type announcer struct{ producer *kgo.Client }

// Announce returns nil when Kafka has every notice.
func (a announcer) Announce(ctx context.Context, list []admission.Crossing) error {
	records := make([]*kgo.Record, len(list))
	for i := range list {
		r, err := noticeOf(&list[i], time.Now().UTC().Truncate(time.Millisecond))
		if err != nil {
			return err
		}
		records[i] = r
	}
	if err := a.producer.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("write %d notices: %w", len(records), err)
	}
	return nil
}

func noticeOf(c *admission.Crossing, now time.Time) (*kgo.Record, error) {
	scale := c.Scale
	n := notice{
		SpecVersion: "1.0", Type: schemas.TypeThreshold, Source: noticeSource, ID: c.ID, Subject: c.Rule.Name, Time: now, DataContentType: typeJSON,
		Data: thresholdData{
			Limit: c.Rule.Name, Tenant: c.Tenant, Metric: c.Rule.Metric, Per: c.Rule.Per, Subject: c.Rule.Subject, Window: c.Rule.Limit.Window, Zone: c.Zone,
			Mode: c.Rule.Mode, Threshold: c.Percent, Maximum: decimal(c.Maximum, scale), Used: decimal(c.Used, scale), Pending: decimal(c.Pending, scale),
		},
	}
	if !c.Window.End.IsZero() {
		n.Data.Start, n.Data.End = &c.Window.Start, &c.Window.End
	}
	value, err := json.Marshal(n)
	if err != nil {
		return nil, fmt.Errorf("encode the notice of limit %q: %w", c.Rule.Name, err)
	}
	key, err := hex.DecodeString(c.ID)
	if err != nil {
		return nil, fmt.Errorf("the notice of limit %q has the id %q: %w", c.Rule.Name, c.ID, err)
	}
	return &kgo.Record{
		Topic: schemas.TopicNotices, Key: key, Value: value,
		Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte(typeStructured)}},
	}, nil
}
