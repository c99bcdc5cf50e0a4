// Package ledger records the log in ClickHouse, the system of record.
package ledger
