package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
)

// Decimal is an exact number as it was written: digits, optionally a minus and a point. It is a string in YAML and JSON ("0.0000025");
// a bare whole number is taken too, and anything else that a YAML reader would turn into a binary float is refused.
type Decimal string

// MaxDecimalBytes bounds the text of one decimal.
const MaxDecimalBytes = 64

// UnmarshalJSON implements json.Unmarshaler.
func (d *Decimal) UnmarshalJSON(b []byte) error {
	text := string(b)
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
	} else if bytes.ContainsAny(b, ".eE") {
		return fmt.Errorf("number %s: write it in quotes, so that no reader makes a binary float of it", b)
	}
	if _, err := Decimal(text).Rat(); err != nil {
		return err
	}
	*d = Decimal(text)
	return nil
}

// Rat returns the number exactly. The empty decimal is 0.
func (d Decimal) Rat() (*big.Rat, error) {
	if d == "" {
		return new(big.Rat), nil
	}
	whole, fraction, point := strings.Cut(strings.TrimPrefix(string(d), "-"), ".")
	if len(d) > MaxDecimalBytes || !onlyDigits(whole) || point && !onlyDigits(fraction) {
		return nil, fmt.Errorf("number %.70q: want plain decimal digits like \"12\" or \"0.0000025\", at most %d characters", string(d), MaxDecimalBytes)
	}
	r, ok := new(big.Rat).SetString(string(d))
	if !ok {
		return nil, fmt.Errorf("number %q: want plain decimal digits", string(d))
	}
	return r, nil
}

func onlyDigits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// PriceBook is one version of the prices and terms that a contract refers to. Amounts and prices are in major units of
// Currency. What it means step by step is rater/rating's business; what it may say is Lint's.
type PriceBook struct {
	Description string `json:"description,omitempty"`
	Currency    string `json:"currency"`           // ISO 4217
	Rounding    string `json:"rounding,omitempty"` // half_away_from_zero (the default), half_even, floor or ceiling; by magnitude
	Tax         Tax    `json:"tax"`
	// Items are tried in order: the first item of a metric that matches the dimensions of a total prices it.
	Items []PriceItem `json:"items"`
	// Unbilled lists metrics that are counted and never billed. A metric in neither place is unpriced: it is shown and
	// holds the document back.
	Unbilled []string `json:"unbilled,omitempty"`
	// Rates turns costs of other currencies into Currency. They are part of the book, so the book's hash covers them.
	Rates       []ExchangeRate `json:"exchange_rates,omitempty"`
	Commitments []Commitment   `json:"commitments,omitempty"`
	Invoice     InvoiceTerms   `json:"invoice,omitzero"`
}

// Tax says how tax is computed: once per rate and document.
type Tax struct {
	Mode     string     `json:"mode,omitempty"`     // exclusive (the default): prices are net; inclusive: prices contain the tax
	Rounding string     `json:"rounding,omitempty"` // of the tax; the book's rounding when empty
	Default  string     `json:"default,omitempty"`  // class of an item that names none; the first class when empty
	Classes  []TaxClass `json:"classes"`
}

// TaxClass is a named rate.
type TaxClass struct {
	Name  string  `json:"name"`
	Rate  Decimal `json:"rate"` // percent: "10"
	Label string  `json:"label,omitempty"`
}

// The models of an item.
const (
	ModelPerUnit    = "per_unit"   // quantity × price / per
	ModelFlat       = "flat"       // price once per period; no metric
	ModelPackage    = "package"    // started packages of size × price
	ModelGraduated  = "graduated"  // each tier's share of the quantity at the tier's price
	ModelVolume     = "volume"     // the whole quantity at the price of the tier that holds it
	ModelPercentage = "percentage" // percent of the quantity, which is an amount of money
	ModelMatrix     = "matrix"     // per unit, the price found by dimensions
	ModelCostPlus   = "cost_plus"  // like matrix, the price being a cost in another currency × exchange rate × (1 + markup)
)

// Models lists the models.
func Models() []string {
	return []string{ModelPerUnit, ModelFlat, ModelPackage, ModelGraduated, ModelVolume, ModelPercentage, ModelMatrix, ModelCostPlus}
}

// PriceItem prices one metric, or is a flat fee.
type PriceItem struct {
	// Key names the item for ever: it is the stem of the line keys by which adjustments find their line.
	Key         string `json:"key"`
	Description string `json:"description,omitempty"`
	Metric      string `json:"metric,omitempty"`
	Model       string `json:"model"`
	// Match restricts the item to totals whose dimensions have one of the listed values.
	Match map[string][]string `json:"match,omitempty"`
	// GroupBy makes a line of its own, with its own tiers and allowance, for each combination of values.
	GroupBy []string `json:"group_by,omitempty"`

	Price   Decimal `json:"price,omitempty"`
	Per     Decimal `json:"per,omitempty"`     // units that Price buys; 1 when empty
	Percent Decimal `json:"percent,omitempty"` // of ModelPercentage
	Tiers   []Tier  `json:"tiers,omitempty"`
	// Size and Round of ModelPackage: a started package counts whole (up, the default) or not (down).
	Size  Decimal `json:"size,omitempty"`
	Round string  `json:"round,omitempty"`
	// Cells of ModelMatrix and ModelCostPlus, tried in order.
	Cells    []Cell  `json:"cells,omitempty"`
	Markup   Decimal `json:"markup,omitempty"`        // percent, of ModelCostPlus
	CostIn   string  `json:"cost_currency,omitempty"` // of ModelCostPlus
	FlatZero bool    `json:"flat_at_zero,omitempty"`  // charge the first tier's flat fee without any usage

	Allowance *Allowance `json:"allowance,omitempty"`
	Minimum   Decimal    `json:"minimum,omitempty"`
	Maximum   Decimal    `json:"maximum,omitempty"`
	Discounts []Discount `json:"discounts,omitempty"`
	TaxClass  string     `json:"tax_class,omitempty"`
	// Proration of flat price, allowance, minimum and maximum in a part of a period: days (the default) or none.
	Proration string `json:"proration,omitempty"`
}

// Tier covers the quantities above the previous tier's UpTo up to and including its own; the last tier has none.
type Tier struct {
	UpTo  Decimal `json:"up_to,omitempty"`
	Price Decimal `json:"price"`
	Per   Decimal `json:"per,omitempty"`
	Flat  Decimal `json:"flat,omitempty"` // charged when the tier holds any of the quantity
}

// Cell is a price at a place of a matrix. A dimension that At does not name may have any value.
type Cell struct {
	At    map[string]string `json:"at"`
	Price Decimal           `json:"price"`
}

// Allowance is a quantity that costs nothing.
type Allowance struct {
	Quantity Decimal `json:"quantity"`
	// Mode is required, for the two give different bills: shift takes the allowance off and starts the tiers on the
	// rest; zero_tier leaves the tiers where they are and makes their first part free.
	Mode string `json:"mode"`
}

// Discount lowers a line or an invoice by a percentage or by an amount; exactly one is set. Percentages come before amounts, each in the order
// of their keys.
type Discount struct {
	Key         string  `json:"key"`
	Description string  `json:"description,omitempty"`
	Percent     Decimal `json:"percent,omitempty"`
	Amount      Decimal `json:"amount,omitempty"`
}

// Commitment is a minimum over several items with a line of its own for what is missing.
type Commitment struct {
	Key         string   `json:"key"`
	Description string   `json:"description,omitempty"`
	Amount      Decimal  `json:"amount"`
	Items       []string `json:"items,omitempty"` // keys; empty means every item
	TaxClass    string   `json:"tax_class,omitempty"`
	Proration   string   `json:"proration,omitempty"`
}

// InvoiceTerms apply to the sum of the lines.
type InvoiceTerms struct {
	Minimum   Decimal    `json:"minimum,omitempty"`
	Maximum   Decimal    `json:"maximum,omitempty"`
	Discounts []Discount `json:"discounts,omitempty"`
	TaxClass  string     `json:"tax_class,omitempty"` // of the line that fills up to the minimum
	Proration string     `json:"proration,omitempty"`
}

// ExchangeRate is what one unit of From costs in the book's currency.
type ExchangeRate struct {
	From   string  `json:"from"`
	Rate   Decimal `json:"rate"`
	Date   string  `json:"date"` // 2026-07-01: the day of the quotation
	Source string  `json:"source,omitempty"`
}
