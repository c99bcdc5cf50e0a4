package document

import (
	"cmp"
	"embed"
	"encoding/csv"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/text/width"

	"github.com/kanjo-dev/kanjo/internal/calendar"
)

// Page is a document ready to be shown. Envelope is nil for a draft.
type Page struct {
	Body     *Body
	Envelope *Envelope
	Head     string
	// Draft is what the draft of an invoice would carry over and draw on if it were issued now.
	Draft *Statement
}

// NewPage reads a final document.
func NewPage(d *Document) (*Page, error) {
	body, err := d.DecodedBody()
	if err != nil {
		return nil, err
	}
	return &Page{Body: body, Envelope: &d.Envelope, Head: d.Head}, nil
}

// Title is the heading: the kind and number of a final document, or that it is a draft.
func (p *Page) Title() string {
	kind := "Invoice"
	switch p.Body.Format {
	case FormatAdjustment:
		kind = "Adjustment"
	case FormatCredit:
		kind = "Credit note"
	}
	if p.Envelope == nil {
		return "Draft " + strings.ToLower(kind)
	}
	return kind + " " + p.Envelope.Number
}

// IsCredit says that the document takes others back.
func (p *Page) IsCredit() bool { return p.Body.Format == FormatCredit }

// Statement is what the invoice asks for beside its total, nil when that is nothing.
func (p *Page) Statement() *Statement {
	if p.Envelope == nil {
		return p.Draft
	}
	return p.Envelope.Statement
}

// Text says what is carried over.
func (c *Carried) Text() string {
	switch c.Kind {
	case KindAdjustment:
		return fmt.Sprintf("Adjustment %s of %s", c.Number, c.Period)
	case KindCredit:
		return fmt.Sprintf("Credit note %s of %s", c.Number, c.Period)
	}
	return fmt.Sprintf("Balance of %s in your favour", c.Number)
}

// Text says what is drawn on and what is left.
func (d *Drawn) Text() string {
	text := fmt.Sprintf("Prepaid %s, %s left of %s", cmp.Or(d.Description, d.Key), Money(d.Closing), Money(d.Opening))
	if d.Until != "" {
		text += ", expires " + d.Until
	}
	return text
}

// Corrected lists the numbers of the documents that an adjustment or a credit note corrects.
func (p *Page) Corrected() string {
	var numbers []string
	for _, r := range p.Body.Corrects {
		numbers = append(numbers, r.Number)
	}
	return strings.Join(numbers, ", ")
}

// Issued is the date of the document in the zone of its period.
func (p *Page) Issued() string {
	if p.Envelope == nil {
		return "not issued"
	}
	return p.local(p.Envelope.IssuedAt).Format(time.DateOnly)
}

// FirstDay and LastDay are the period's local dates.
func (p *Page) FirstDay() string { return p.local(p.Body.Period.Start).Format(time.DateOnly) }

// LastDay is the local date of the period's last instant.
func (p *Page) LastDay() string { return p.local(p.Body.Period.End.Add(-1)).Format(time.DateOnly) }

// local shows an instant in the zone of the period, in UTC where this binary has no such zone.
func (p *Page) local(t time.Time) time.Time {
	zone, err := calendar.Load(p.Body.Period.Zone)
	if err != nil {
		return t.UTC()
	}
	return t.In(zone)
}

// Money groups the digits of an amount: 1234567.80 is 1,234,567.80.
// A fraction such as 1170/31, which proration leaves in the steps of a line, has both its numbers grouped.
func Money(amount string) string {
	if over, under, ok := strings.Cut(amount, "/"); ok {
		return Money(over) + "/" + Money(under)
	}
	sign := ""
	if strings.HasPrefix(amount, "-") {
		sign, amount = "-", amount[1:]
	}
	whole, fraction, point := strings.Cut(amount, ".")
	var b strings.Builder
	b.WriteString(sign)
	for i := range len(whole) {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteByte(whole[i])
	}
	if point {
		b.WriteString("." + fraction)
	}
	return b.String()
}

// Name says what a line is for.
func (l *Line) Name() string {
	name := cmp.Or(l.Description, l.Item)
	if len(l.Dimensions) > 0 {
		var parts []string
		for _, d := range slices.Sorted(maps.Keys(l.Dimensions)) {
			parts = append(parts, d+" "+cmp.Or(l.Dimensions[d], "(none)"))
		}
		name += " (" + strings.Join(parts, ", ") + ")"
	}
	return name
}

// Arithmetic is the line's computation in words that a reader can check.
func (l *Line) Arithmetic() string {
	var parts []string
	before := ""
	for _, s := range l.Steps {
		if s.Name == documentedBefore {
			before = s.Amount // no part of what is exact now
			continue
		}
		parts = append(parts, s.Arithmetic())
	}
	text := strings.Join(parts, " + ")
	if text != "" && !strings.HasSuffix(text, " "+l.Exact) && (l.Exact != l.Amount || before != "") {
		text += " = " + l.Exact
	}
	if before != "" {
		text = cmp.Or(text, l.Exact) + ", " + documentedBefore + " " + before
	}
	return text
}

// Arithmetic is the step's computation.
func (s *Step) Arithmetic() string {
	switch {
	case s.Quantity != "" && s.Price == "":
		return fmt.Sprintf("%s free (%s)", Money(s.Quantity), s.Name)
	case s.Per != "":
		return fmt.Sprintf("%s × %s / %s", Money(s.Quantity), s.Price, Money(s.Per))
	case s.Quantity != "":
		return fmt.Sprintf("%s × %s", Money(s.Quantity), s.Price)
	}
	return fmt.Sprintf("%s %s", s.Name, s.Amount)
}

// Text says what is counted otherwise than it was sent, and why.
func (c *Counting) Text() string {
	what := fmt.Sprintf("%s of metric %s", Money(c.Reported), c.Metric)
	why := fmt.Sprintf("rule %s of %s version %d", c.Rule, c.Name, c.Version)
	if c.By == ByDispute {
		why = fmt.Sprintf("dispute %s version %d, %s: %s", c.Name, c.Version, c.State, c.Reason)
	}
	if c.Counted == "0" {
		return fmt.Sprintf("SET ASIDE: %s (%d events): %s", what, c.Events, why)
	}
	return fmt.Sprintf("COUNTED AS %s: %s (%d events): %s", Money(c.Counted), what, c.Events, why)
}

// WriteText prints the document for a terminal, in columns of 78 characters.
func (p *Page) WriteText(w io.Writer) error {
	b := p.Body
	var out strings.Builder
	line := func(left, right string) {
		space := max(textWidth-columns(left)-columns(right), 1)
		out.WriteString(strings.TrimRight(left+strings.Repeat(" ", space)+right, " ") + "\n")
	}
	rule := strings.Repeat("─", textWidth) + "\n"
	line(p.Title(), "issued "+p.Issued())
	out.WriteString(rule)
	// A party's name or address may have several lines: all of them stand in one column.
	party := func(label, text, right string) {
		for part := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
			line(label+part, right)
			label, right = "       ", ""
		}
	}
	party("From   ", b.Issuer.Name, b.Issuer.TaxID)
	party("To     ", cmp.Or(b.Tenant.DisplayName, b.Tenant.Name), b.Tenant.TaxID)
	if b.Tenant.Address != "" {
		party("       ", b.Tenant.Address, "")
	}
	line(fmt.Sprintf("For    %s to %s", p.FirstDay(), p.LastDay()), b.Period.Zone)
	if c := p.Corrected(); p.IsCredit() {
		line("Takes back "+c, "")
		line("Reason "+b.Reason, "")
	} else if c != "" {
		line("Adds to "+c, "")
	}
	out.WriteString(rule)
	for i := range b.Lines {
		l := &b.Lines[i]
		line(l.Name(), Money(l.Amount))
		if a := l.Arithmetic(); a != "" {
			line("    "+a, "")
		}
	}
	if len(b.Lines) == 0 {
		line("no usage", "")
	}
	out.WriteString(rule)
	line("Subtotal", Money(b.Subtotal))
	for _, a := range b.Adjustments {
		line(cmp.Or(a.Description, a.Key), Money(a.Amount))
	}
	for _, t := range b.Taxes {
		line(fmt.Sprintf("%s on %s", t.Name(), Money(t.Net)), Money(t.Tax))
	}
	line("Total "+b.Currency+p.taxNote(), Money(b.Total))
	if s := p.Statement(); s != nil {
		for i := range s.Carried {
			line(s.Carried[i].Text(), Money(s.Carried[i].Amount))
		}
		for i := range s.Prepaid {
			line(s.Prepaid[i].Text(), Money(negative(s.Prepaid[i].Drawn)))
		}
		line("To pay "+b.Currency, Money(s.Payable))
	}
	for i := range b.Unpriced {
		u := &b.Unpriced[i]
		line(fmt.Sprintf("NOT BILLED: %s of metric %s has no price (%d events)", u.Quantity, u.Metric, u.Events), "")
	}
	for i := range b.Counting {
		line(b.Counting[i].Text(), "")
	}
	out.WriteString(rule)
	fmt.Fprintf(&out, "%d events, digest %s\n", b.Manifest.Events, b.Manifest.EventsSHA256)
	if p.Head != "" {
		fmt.Fprintf(&out, "head %s\n", p.Head)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

const textWidth = 78

// negative is an amount with the opposite sign.
func negative(amount string) string {
	if strings.Trim(amount, "0.") == "" {
		return amount
	}
	if rest, ok := strings.CutPrefix(amount, "-"); ok {
		return rest
	}
	return "-" + amount
}

// columns counts what a terminal gives a text: East Asian characters take two.
func columns(s string) int {
	n := 0
	for _, r := range s {
		switch width.LookupRune(r).Kind() {
		case width.EastAsianWide, width.EastAsianFullwidth:
			n += 2
		default:
			n++
		}
	}
	return n
}

// Name is the label of the rate, or the rate.
func (t *TaxLine) Name() string { return cmp.Or(t.Label, "Tax "+t.Rate+" %") }

func (p *Page) taxNote() string {
	if p.Body.Prices == "inclusive" {
		return " (tax included)"
	}
	return ""
}

//go:embed page.html
var pageFile embed.FS

var pageTemplate = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"money": Money, "negative": negative,
	"or": func(a, b string) string { return cmp.Or(a, b) },
}).ParseFS(pageFile, "page.html"))

// WriteHTML prints the document as one page that needs nothing else: no script, no font, no picture from elsewhere.
func (p *Page) WriteHTML(w io.Writer) error { return pageTemplate.Execute(w, p) }

// csvHeader names the columns of WriteCSV.
var csvHeader = []string{
	"number", "tenant", "period", "kind", "key", "description", "metric", "dimensions", "quantity", "unit", "tax_rate", "amount", "currency",
}

// WriteCSV writes the lines, adjustments and taxes of documents, a row each, with a header. The amounts of kinds line and adjustment sum to
// the net total, or to the gross one where prices contain the tax.
func WriteCSV(w io.Writer, pages ...*Page) error {
	out := csv.NewWriter(w)
	out.UseCRLF = true // RFC 4180
	if err := out.Write(csvHeader); err != nil {
		return err
	}
	for _, p := range pages {
		number := ""
		if p.Envelope != nil {
			number = p.Envelope.Number
		}
		b := p.Body
		row := func(kind, key, description, metric, dimensions, quantity, unit, rate, amount string) error {
			cells := []string{number, b.Tenant.Name, b.Period.Month, kind, key, description, metric, dimensions, quantity, unit, rate, amount, b.Currency}
			for i, c := range cells {
				cells[i] = harmless(c, kind != "" && (i == 8 || i == 11))
			}
			return out.Write(cells)
		}
		for i := range b.Lines {
			l := &b.Lines[i]
			var dims []string
			for _, d := range slices.Sorted(maps.Keys(l.Dimensions)) {
				dims = append(dims, d+"="+l.Dimensions[d])
			}
			if err := row("line", l.Key, l.Description, l.Metric, strings.Join(dims, ";"), l.Quantity, l.Unit, l.TaxRate, l.Amount); err != nil {
				return err
			}
		}
		for _, a := range b.Adjustments {
			for _, part := range a.Parts {
				if err := row("adjustment", a.Key, a.Description, "", "", "", "", part.Rate, part.Amount); err != nil {
					return err
				}
			}
		}
		for _, t := range b.Taxes {
			if err := row("tax", "tax", t.Name(), "", "", t.Net, "", t.Rate, t.Tax); err != nil {
				return err
			}
		}
	}
	out.Flush()
	return out.Error()
}

// harmless keeps a spreadsheet from running a cell as a formula; numbers, which may begin with a minus, are ours and stay as they are.
func harmless(cell string, number bool) string {
	if r, _ := utf8.DecodeRuneInString(cell); !number && strings.ContainsRune("=+-@\t\r", r) {
		return "'" + cell
	}
	return cell
}
