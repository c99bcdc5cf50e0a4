// Package pricebook finds the versions of price books that hold, and makes them ready for rating.
package pricebook

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/rater/rating"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// Version is one version of a price book. It is immutable.
type Version struct {
	Name   string
	Number int
	SHA256 string // of the book's text; a document names it
	Spec   *control.PriceBook
	Book   *rating.Book
}

// At returns the version of a book that holds at an instant.
func At(dir *directory.Directory, name string, t time.Time) (*Version, error) {
	doc, ok := dir.Document(control.KindPriceBook, name, t)
	if !ok {
		return nil, fmt.Errorf("price book %s: no version of it holds at %s", name, t.UTC().Format(time.RFC3339))
	}
	return Read(doc)
}

// Pinned returns the version that a cut names, and an error when its text is not the one that the cut was taken with.
func Pinned(dir *directory.Directory, name string, number int, sha256 string) (*Version, error) {
	for _, doc := range dir.Versions(control.KindPriceBook, name) {
		if doc.Version != number {
			continue
		}
		v, err := Read(doc)
		if err == nil && v.SHA256 != sha256 {
			return nil, fmt.Errorf("price book %s version %d: its text has digest %.12s, the cut was taken with %.12s: the same version has another text",
				name, number, v.SHA256, sha256)
		}
		return v, err
	}
	return nil, fmt.Errorf("price book %s version %d: not in the control plane", name, number)
}

// Digest returns the SHA-256 of a book's text as 64 hexadecimal digits. It is computed, never taken from the record, so a text
// that was changed under its digest is found.
func Digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Read makes a version of a book from its control document.
func Read(doc control.Document) (*Version, error) {
	spec, err := Parse(doc.Spec)
	if err != nil {
		return nil, fmt.Errorf("price book %s version %d: %w", doc.Name, doc.Version, err)
	}
	book, err := rating.Compile(spec)
	if err != nil {
		return nil, fmt.Errorf("price book %s version %d: %w", doc.Name, doc.Version, err)
	}
	return &Version{Name: doc.Name, Number: doc.Version, SHA256: Digest(doc.Spec), Spec: spec, Book: book}, nil
}

// Under returns the version as a tenant's contract changes it. Its name, number and digest stay those of the book.
func (v *Version) Under(contract *control.Contract, trial bool) (*Version, error) {
	spec, err := contract.Apply(v.Spec, trial)
	if err != nil {
		return nil, err
	}
	book, err := rating.Compile(spec)
	if err != nil {
		return nil, err
	}
	return &Version{Name: v.Name, Number: v.Number, SHA256: v.SHA256, Spec: spec, Book: book}, nil
}

// Parse reads the JSON text of a book. A member that this version does not know is an error: it could be a price.
func Parse(text []byte) (*control.PriceBook, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var spec control.PriceBook
	if err := d.Decode(&spec); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the book")
	}
	return &spec, nil
}
