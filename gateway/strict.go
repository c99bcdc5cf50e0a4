package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"
)

// strictJSON decodes one JSON object into the struct that into points to. Unlike encoding/json it takes names as they are written, each once,
// and nothing behind the object, as POST /v1/events does: of two amounts nobody could say which one was meant. What is in a
// json.RawMessage is left to whoever reads that.
func strictJSON(body []byte, into any) error {
	if !utf8.Valid(body) {
		return errors.New("it is not UTF-8")
	}
	names := make(map[string]bool) // to whether the member is left alone
	typ := reflect.TypeOf(into).Elem()
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names[name] = f.Type == reflect.TypeFor[json.RawMessage]()
	}
	d := json.NewDecoder(bytes.NewReader(body))
	start, err := d.Token()
	if err != nil {
		return err
	}
	if start != json.Delim('{') {
		return errors.New("it is no JSON object")
	}
	seen := make(map[string]bool)
	for d.More() {
		name, err := member(d, seen)
		if err != nil {
			return err
		}
		alone, known := names[name]
		if !known {
			return fmt.Errorf("there is no member %q", clip(name))
		}
		if alone {
			err = d.Decode(new(json.RawMessage))
		} else {
			err = once(d)
		}
		if err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON object")
	}
	return json.Unmarshal(body, into)
}

// member reads the name of an object's next member.
func member(d *json.Decoder, seen map[string]bool) (string, error) {
	token, err := d.Token()
	if err != nil {
		return "", err
	}
	name, ok := token.(string)
	if !ok {
		return "", fmt.Errorf("%v is no name of a member", token)
	}
	if seen[name] {
		return "", fmt.Errorf("the member %q is there twice", clip(name))
	}
	seen[name] = true
	return name, nil
}

// once reads a value and refuses objects in it that name a member twice.
func once(d *json.Decoder) error {
	var open []map[string]bool // of each object or array that has not ended; nil for an array
	for {
		if n := len(open); n > 0 && open[n-1] != nil && d.More() {
			if _, err := member(d, open[n-1]); err != nil {
				return err
			}
		}
		token, err := d.Token()
		if err != nil {
			return err
		}
		switch token {
		case json.Delim('{'):
			open = append(open, make(map[string]bool))
		case json.Delim('['):
			open = append(open, nil)
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
		if len(open) == 0 {
			return nil
		}
	}
}
