// Package reconcile compares a provider's bill with what was metered of the same usage, and names the cause of each difference where the
// figures tell it.
//
// Both sides are quantities by UTC day, model and metric: a provider bills by UTC days, so the months of tenants play no part. Quantities are exact; a cause
// is named only when it explains a difference to the last unit, and what no cause explains stays unexplained.
//
// Open reconcile.go first; bill.go reads a provider's file, ledger.go what was metered.
package reconcile
