package rater

import (
	"slices"

	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/rater/pricebook"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// extend puts into a cut, for each segment, the version of the book that holds there by now when it only prices what the pinned one left
// without a price. Everything that had a price keeps it; the terms of a version that changes more are never taken into a cut that stands.
func (c *closing) extend(cut *document.Cut) error {
	segments := slices.Clone(cut.Segments)
	for i := range segments {
		s := &segments[i]
		if s.Book == "" {
			continue
		}
		doc, ok := c.Directory.Document(control.KindPriceBook, s.Book, s.Start)
		if !ok || doc.Version <= s.Version {
			continue
		}
		was, err := pricebook.Pinned(c.Directory, s.Book, s.Version, s.SHA256)
		if err != nil {
			return err
		}
		now, err := pricebook.Read(doc)
		if err != nil {
			return err
		}
		if now.Spec.Extends(was.Spec) == nil {
			s.Version, s.SHA256 = now.Number, now.SHA256
		}
	}
	cut.Segments = segments
	return nil
}

// revised returns the cut that takes the place of one that stands without a document: the same log and terms, with prices for what had none. It
// is the cut itself when there is nothing of that.
func (c *closing) revised(cut *document.Cut) (*document.Cut, error) {
	next := *cut
	if err := c.extend(&next); err != nil {
		return nil, err
	}
	if slices.Equal(next.Segments, cut.Segments) {
		return cut, nil
	}
	next.Revision++
	return &next, nil
}
