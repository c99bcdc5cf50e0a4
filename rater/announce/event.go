package announce

import (
	"encoding/json"
	"fmt"
	"net/url"
	"time"

	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/schemas"
)

// The types of announcements.
const (
	TypeInvoice    = "kanjo.invoice.finalized.v1"
	TypeAdjustment = "kanjo.adjustment.finalized.v1"
	TypeCredit     = "kanjo.credit_note.finalized.v1"
)

// Data is what an announcement says. Amounts are decimals as they are printed.
type Data struct {
	Number   string `json:"number"`
	Kind     string `json:"kind"`
	Series   string `json:"series"`
	Tenant   string `json:"tenant"`
	Period   string `json:"period"` // 2026-07
	Currency string `json:"currency"`
	Net      string `json:"net"`
	Tax      string `json:"tax"`
	Total    string `json:"total"`
	// Payable is what an invoice asks for: the total with what is carried over and less what is drawn on prepaid credits. Empty for other
	// kinds.
	Payable  string    `json:"payable,omitempty"`
	IssuedAt time.Time `json:"issued_at"`
	// Head is the digest of the document's envelope: keep it, and kanjo invoice verify --head tells whether the document still stands.
	Head string `json:"head"`
	// Corrects are the numbers of the documents that an adjustment or a credit note corrects.
	Corrects []string `json:"corrects,omitempty"`
}

// Announcement is a CloudEvent in Kafka's binary mode. It depends on the document alone.
type Announcement struct {
	Key     []byte
	Headers []schemas.Header
	Value   []byte
	Time    time.Time // of the document
}

// Of makes the announcement of a document. Its id is the document's head.
func Of(d *document.Document) (*Announcement, error) {
	e := &d.Envelope
	types := map[string]string{document.KindInvoice: TypeInvoice, document.KindAdjustment: TypeAdjustment, document.KindCredit: TypeCredit}
	typ, ok := types[e.Kind]
	if !ok {
		return nil, fmt.Errorf("document %s has kind %q: a newer version of Kanjo wrote it; use that version", e.Number, e.Kind)
	}
	body, err := d.DecodedBody()
	if err != nil {
		return nil, err
	}
	data := Data{
		Number: e.Number, Kind: e.Kind, Series: e.Series, Tenant: e.Tenant, Period: e.Period,
		Currency: body.Currency, Net: body.Net, Tax: body.Tax, Total: body.Total, IssuedAt: e.IssuedAt.UTC(), Head: d.Head,
	}
	if e.Kind == document.KindInvoice {
		data.Payable = body.Total
		if e.Statement != nil {
			data.Payable = e.Statement.Payable
		}
	}
	for _, r := range body.Corrects {
		data.Corrects = append(data.Corrects, r.Number)
	}
	value, err := json.Marshal(data)
	if err != nil {
		return nil, fmt.Errorf("announce %s: %w", e.Number, err)
	}
	header := func(name, value string) schemas.Header { return schemas.Header{Key: name, Value: []byte(value)} }
	return &Announcement{
		Key: []byte(e.Tenant), Value: value, Time: e.IssuedAt,
		Headers: []schemas.Header{
			header("ce_specversion", "1.0"), header("ce_id", d.Head), header("ce_source", "/kanjo/series/"+url.PathEscape(e.Series)),
			header("ce_type", typ), header("ce_subject", e.Number), header("ce_time", e.IssuedAt.UTC().Format(time.RFC3339)),
			header("content-type", "application/json"),
		},
	}, nil
}
