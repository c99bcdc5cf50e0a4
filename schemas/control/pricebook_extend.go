package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Extends returns nil when the book prices only what old left without a price, and an error that says what else it changes. Such a
// version may hold for a period that is final: everything that had a price there keeps it. That is so when the book is old with items behind
// all those of their metric, and metrics in Unbilled, added.
func (b *PriceBook) Extends(old *PriceBook) error {
	rest := *b
	rest.Items, rest.Unbilled, rest.Rates, rest.Description = nil, nil, nil, old.Description
	next := 0 // of old.Items
	for i := range b.Items {
		it := &b.Items[i]
		if next < len(old.Items) && sameJSON(it, &old.Items[next]) {
			rest.Items = append(rest.Items, *it)
			next++
			continue
		}
		if it.Metric == "" {
			return fmt.Errorf("items[%d] (%s): a fee would be charged that was not agreed", i, it.Key)
		}
		if slices.ContainsFunc(old.Items[next:], func(o PriceItem) bool { return o.Metric == it.Metric }) {
			return fmt.Errorf("items[%d] (%s): stands before an item of its metric, or changes one", i, it.Key)
		}
		if it.standsWithoutUsage() {
			return fmt.Errorf("items[%d] (%s): would be charged without any usage", i, it.Key)
		}
		if slices.Contains(old.Unbilled, it.Metric) {
			return fmt.Errorf("items[%d] (%s): metric %q was not to be billed", i, it.Key, it.Metric)
		}
	}
	if next < len(old.Items) {
		return fmt.Errorf("items: item %q is gone or changed", old.Items[next].Key)
	}
	for _, metric := range b.Unbilled {
		if slices.Contains(old.Unbilled, metric) {
			rest.Unbilled = append(rest.Unbilled, metric)
		}
	}
	for _, r := range b.Rates {
		if slices.Contains(old.Rates, r) {
			rest.Rates = append(rest.Rates, r)
		}
	}
	if !sameJSON(&rest, old) {
		return errors.New("it changes more than items: currency, rounding, tax, exchange rates, commitments and the invoice's terms stay as they are")
	}
	return nil
}

// standsWithoutUsage reports whether the item makes a line in a period without any usage.
func (p *PriceItem) standsWithoutUsage() bool {
	return p.Model == ModelFlat || p.FlatZero || p.Minimum != ""
}

func sameJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}
