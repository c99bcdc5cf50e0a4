// Package document is what kanjo.documents holds: cuts and final documents, in one partition per numbering series.
//
// A document is a body and an envelope. The body says what is owed and why; it is a pure function of the cut, the usage below
// it and the control documents that the cut pins, so anyone can make the same bytes again. The envelope adds what only this
// document has: its number, its date, the digest of its body, links to the document before it in the series and to the one
// before it of the tenant, and, of an invoice, a statement: what it carries over from other documents and draws on prepaid credits. The digest of the envelope is the document's head: whoever keeps one head can tell whether any document
// before it was changed, taken out or put in.
//
// The transaction that writes a document is what makes it final. A closer takes over its series by the series' fixed transactional
// id, which fences a closer that still runs, and reads the whole topic before it writes: so there is one document per tenant and
// period that stands, and numbers have no gap. Nothing on the topic is ever changed: a credit note takes an invoice back, and the next close issues another.
//
// When Kafka is down nothing is written and nothing is lost: a closer that comes back reads where things stand. Open records.go
// first, then archive.go and closer.go.
package document
