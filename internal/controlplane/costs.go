package controlplane

import (
	"strings"

	"github.com/kanjo-dev/kanjo/rater/money"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// costs checks a cost catalogue by its own rules. A finding begins with its path in the catalogue.
func (c *checker) costs(v *control.CostCatalogue) {
	c.need("spec.currency")
	c.need("spec.costs")
	if _, err := money.CurrencyOf(v.Currency); err != nil && currencyCode.MatchString(v.Currency) {
		c.fail("spec.currency", "%v", err)
	}
	_, err := v.Compile()
	if err == nil || c.e.unknown {
		return
	}
	findings := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		findings = joined.Unwrap()
	}
	for _, f := range findings {
		path, message, _ := strings.Cut(f.Error(), ": ")
		if c.e.has("spec." + strings.SplitN(path, "[", 2)[0]) {
			c.fail("spec."+path, "%s", message)
		}
	}
}
