// Package rating turns exact totals of usage into the lines, taxes and total of a bill. It is a pure function of the totals and
// the compiled price books: no clock, no input or output, no order of a map. The same function serves the preview, the
// invoice, the simulation and the verification, so they cannot drift apart.
//
// The steps, in their order:
//
//  1. Each total goes to the first item of its metric whose Match it fits; totals of one line are added up. A total that no item
//     takes, and whose metric is not listed as unbilled, is unpriced: it is handed back, never priced at zero.
//  2. Per line: allowance, then the model's price, then minimum and maximum, then the line's discounts (percentages
//     chained, then amounts; never below zero), all exact. Then the line is rounded: the only rounding of a line.
//  3. Per segment: commitments, then the invoice's minimum (each as a line for what is missing), then its maximum, then
//     its discounts, each spread over the tax rates by largest remainder.
//  4. Per tax rate, over all segments: one tax, rounded once.
//
// A segment is a part of the period under one book: a contract that changes on the 16th makes two. In a segment tiers start
// anew, and flat fees, allowances, minimums, maximums and amounts off are prorated by its days, unless the book says otherwise.
//
// Each released version of these rules stays in the package under its number; a document names the version that made it.
// Open rate.go first.
package rating
