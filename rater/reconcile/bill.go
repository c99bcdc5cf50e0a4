package reconcile

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shopspring/decimal"
)

// Layout says how a provider's file is read.
type Layout struct {
	Day   string // column: a date, an RFC 3339 instant or seconds since 1970, of which the UTC day counts
	Model string // column; empty means that the file has no models
	// Metrics says in which columns the quantity of a metric stands.
	Metrics []MetricColumns
}

// MetricColumns is a metric that is the sum of some columns less some others: a provider that counts cached input inside input is
// read by input_tokens=input-cached.
type MetricColumns struct {
	Metric      string
	Plus, Minus []string
}

// ParseMetric reads METRIC=COLUMN+COLUMN-COLUMN.
func ParseMetric(text string) (MetricColumns, error) {
	metric, columns, ok := strings.Cut(text, "=")
	m := MetricColumns{Metric: metric}
	bad := fmt.Errorf("metric %q: want METRIC=COLUMN, with +COLUMN or -COLUMN for what is added or taken off", text)
	if !ok || metric == "" || columns == "" {
		return m, bad
	}
	sign := byte('+')
	for columns != "" {
		end := strings.IndexAny(columns, "+-")
		name := columns
		if end >= 0 {
			name = columns[:end]
		}
		if name == "" {
			return m, bad
		}
		if sign == '+' {
			m.Plus = append(m.Plus, name)
		} else {
			m.Minus = append(m.Minus, name)
		}
		if end < 0 {
			return m, nil
		}
		sign, columns = columns[end], columns[end+1:]
		if columns == "" {
			return m, bad
		}
	}
	return m, nil
}

// ReadBill reads a CSV file with a header. A row that cannot be read is an error, which names its line: a bill that is read in part would
// differ for no reason.
func ReadBill(r io.Reader, layout Layout) (Quantities, error) {
	in := csv.NewReader(r)
	in.TrimLeadingSpace = true
	header, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("read the header of the bill: %w", err)
	}
	header[0] = strings.TrimPrefix(header[0], "\uFEFF") // some spreadsheets begin a file with it
	column := func(name string) (int, error) {
		i := slices.Index(header, name)
		if i < 0 {
			return 0, fmt.Errorf("the bill has no column %q; it has %s", name, strings.Join(header, ", "))
		}
		return i, nil
	}
	day, err := column(layout.Day)
	if err != nil {
		return nil, err
	}
	model := -1
	if layout.Model != "" {
		if model, err = column(layout.Model); err != nil {
			return nil, err
		}
	}
	type source struct {
		at   int
		sign int64
	}
	metrics := make([][]source, len(layout.Metrics))
	var errs []error
	for i, m := range layout.Metrics {
		for _, part := range []struct {
			names []string
			sign  int64
		}{{m.Plus, 1}, {m.Minus, -1}} {
			for _, name := range part.names {
				at, err := column(name)
				errs = append(errs, err)
				metrics[i] = append(metrics[i], source{at, part.sign})
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	out := make(Quantities)
	for {
		row, err := in.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the bill: %w", err)
		}
		line, _ := in.FieldPos(0)
		k := Key{}
		if k.Day, err = utcDay(row[day]); err != nil {
			return nil, fmt.Errorf("the bill, line %d: %w", line, err)
		}
		if model >= 0 {
			k.Model = row[model]
		}
		for i, m := range layout.Metrics {
			k.Metric = m.Metric
			sum := decimal.Zero
			for _, s := range metrics[i] {
				x, err := quantity(row[s.at])
				if err != nil {
					return nil, fmt.Errorf("the bill, line %d, column %s: %w", line, header[s.at], err)
				}
				sum = sum.Add(x.Mul(decimal.NewFromInt(s.sign)))
			}
			out.Add(k, sum)
		}
	}
}

// quantity reads a decimal; an empty cell is 0.
func quantity(text string) (decimal.Decimal, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return decimal.Zero, nil
	}
	const longest = 64
	if len(text) > longest || strings.Trim(text, "0123456789.-") != "" {
		return decimal.Zero, fmt.Errorf("%.70q is no decimal", text)
	}
	return decimal.NewFromString(text)
}

// utcDay reads a date or an instant.
func utcDay(text string) (string, error) {
	text = strings.TrimSpace(text)
	if _, err := time.Parse(time.DateOnly, text); err == nil {
		return text, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t.UTC().Format(time.DateOnly), nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 && n < 1<<33 {
		return time.Unix(n, 0).UTC().Format(time.DateOnly), nil
	}
	return "", fmt.Errorf("%q is no day: want 2026-07-01, an RFC 3339 instant or seconds since 1970", text)
}
