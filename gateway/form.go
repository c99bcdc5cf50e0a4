package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/kanjo-dev/kanjo/schemas"
)

// form is how a request carries its events.
type form struct {
	// batch says that the answer has a result for each event.
	batch bool
	// binary says that the attributes stand in the HTTP headers.
	binary bool
	values []json.RawMessage // an event each, sharing the body's memory
	// contentType is that of the Kafka records; empty in binary mode, where it is one of the headers.
	contentType string
}

// The media types of POST /v1/events, as the Accept-Post header names them.
const (
	typeStructured = "application/cloudevents+json"
	typeBatch      = "application/cloudevents-batch+json"
	typeJSON       = "application/json"
	typeNDJSON     = "application/x-ndjson"
	acceptPost     = typeStructured + ", " + typeBatch + ", " + typeJSON + ", " + typeNDJSON
)

// formOf decides by the headers alone how the events will be carried; split then takes the body apart.
func formOf(h http.Header) (f form, mediaType string, p *problem) {
	if encoding := h.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return f, "", newProblem(http.StatusUnsupportedMediaType, codeMediaType, "send the body without a content encoding").at("Content-Encoding")
	}
	given := h.Get("Content-Type")
	mediaType, params, err := mime.ParseMediaType(given)
	switch {
	case err != nil:
		return f, "", newProblem(http.StatusUnsupportedMediaType, codeMediaType, fmt.Sprintf("%q: want one of %s", clip(given), acceptPost)).at("Content-Type")
	case params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8"):
		return f, "", newProblem(http.StatusUnsupportedMediaType, codeMediaType, "the charset is UTF-8").at("Content-Type")
	}
	// As the HTTP binding says: what is not a cloudevents media type and has the attributes in headers is binary mode.
	f.binary = !strings.HasPrefix(mediaType, "application/cloudevents") && len(h["Ce-Specversion"]) > 0
	switch {
	case f.binary, mediaType == typeJSON:
		f.contentType = typeJSON
	case mediaType == typeStructured:
		f.contentType = typeStructured
	case mediaType == typeBatch:
		f.batch, f.contentType = true, typeStructured
	case mediaType == typeNDJSON, mediaType == "application/ndjson", mediaType == "application/jsonl":
		f.batch, f.contentType, mediaType = true, typeJSON, typeNDJSON
	default:
		return f, "", newProblem(http.StatusUnsupportedMediaType, codeMediaType, fmt.Sprintf("%q: want one of %s", clip(given), acceptPost)).at("Content-Type")
	}
	return f, mediaType, nil
}

// split takes the body apart. A JSON array under application/json is a batch too.
func (f *form) split(mediaType string, body []byte, most int) *problem {
	if mediaType == typeJSON && !f.binary {
		f.batch = bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("["))
	}
	switch {
	case mediaType == typeNDJSON:
		for line := range bytes.Lines(body) {
			if line = bytes.TrimSpace(line); len(line) == 0 {
				continue
			}
			if len(f.values) == most {
				return tooMany(most)
			}
			f.values = append(f.values, line)
		}
	case f.batch:
		values, err := schemas.SplitBatchMax(body, most)
		if err != nil {
			r := asRefusal(err)
			if r.Reason == schemas.ReasonTooLarge {
				return tooMany(most)
			}
			return refusalProblem(r)
		}
		f.values = values
	default:
		f.values = []json.RawMessage{body}
	}
	if len(f.values) == 0 {
		return newProblem(http.StatusBadRequest, codeBadRequest, "the request holds no event")
	}
	return nil
}

func tooMany(most int) *problem {
	return newProblem(http.StatusRequestEntityTooLarge, codeTooLarge, fmt.Sprintf("the batch holds more than %d events: send several batches", most))
}

// clip bounds what an answer repeats of a request.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
