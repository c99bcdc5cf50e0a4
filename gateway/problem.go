package gateway

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/kanjo-dev/kanjo/schemas"
)

// problem is an answer that is not a success, in the form of RFC 9457.
type problem struct {
	Type   string `json:"type"` // urn:kanjo:problem:<code>
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Reason is of schemas' closed list when an event is refused.
	Reason schemas.Reason `json:"reason,omitempty"`
	// Field names the attribute, header, member or parameter at fault.
	Field string `json:"field,omitempty"`
	// Event is "accepted" when an event that came along is in Kafka although the rest failed.
	Event string `json:"event,omitempty"`
	// Accepted, Refused and Results are set when the request held a batch.
	*batchAnswer

	retryAfter int // seconds; 0 sends no header
}

// code is what tells problems apart; the list is closed.
type code string

const (
	codeInvalidEvent    code = "invalid-event"
	codeNotAllowed      code = "not-allowed"
	codeUnknownName     code = "unknown-name"
	codeBeyondTrust     code = "beyond-trust"
	codeTooLarge        code = "too-large"
	codeMediaType       code = "unsupported-media-type"
	codeBadRequest      code = "bad-request"
	codeUnauthorized    code = "unauthorized"
	codeNotFound        code = "not-found"
	codeMethod          code = "method-not-allowed"
	codeTooManyRequests code = "too-many-requests"
	codeOverloaded      code = "overloaded"
	codeNotLoaded       code = "control-plane-not-loaded"
	codeNotAcknowledged code = "not-acknowledged"
	codeCannotCount     code = "cannot-count"
	codeOverLimit       code = "over-limit"
	codeConflict        code = "conflict"
	codeTimeout         code = "timeout"
	codeInternal        code = "internal"
)

var titles = map[code]string{
	codeInvalidEvent:    "The event breaks a rule",
	codeNotAllowed:      "The key may not do this",
	codeUnknownName:     "The control plane has no such name",
	codeBeyondTrust:     "The source is not trusted with this time",
	codeTooLarge:        "The request is too large",
	codeMediaType:       "The media type is not supported",
	codeBadRequest:      "The request cannot be understood",
	codeUnauthorized:    "A valid gateway key is needed",
	codeNotFound:        "There is nothing here",
	codeMethod:          "The method is not allowed here",
	codeTooManyRequests: "The key has too many requests in flight",
	codeOverloaded:      "The gateway is overloaded",
	codeNotLoaded:       "The gateway has not loaded the control plane yet",
	codeNotAcknowledged: "Kafka has not acknowledged the events",
	codeCannotCount:     "The count is not known",
	codeOverLimit:       "A limit is reached",
	codeConflict:        "The reservation cannot do this",
	codeTimeout:         "The request did not come in time",
	codeInternal:        "The gateway failed",
}

func newProblem(status int, c code, detail string) *problem {
	return &problem{Type: "urn:kanjo:problem:" + string(c), Title: titles[c], Status: status, Detail: detail}
}

func (p *problem) at(field string) *problem {
	p.Field = field
	return p
}

// again says after how many seconds another try makes sense.
func (p *problem) again(seconds int) *problem {
	p.retryAfter = seconds
	return p
}

func (p *problem) write(w http.ResponseWriter) {
	h := w.Header()
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	writeJSON(w, p.Status, "application/problem+json", p)
}

func writeJSON(w http.ResponseWriter, status int, mediaType string, v any) {
	body, err := json.Marshal(v)
	if err != nil { // our own types always have a JSON form
		http.Error(w, "encode the answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", mediaType)
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the client is gone: nobody is left to tell
}

// refusalProblem gives a refusal the status that means it.
func refusalProblem(r *schemas.Refusal) *problem {
	status, c := http.StatusBadRequest, codeInvalidEvent
	switch r.Reason {
	case schemas.ReasonTooLarge:
		status, c = http.StatusRequestEntityTooLarge, codeTooLarge
	case schemas.ReasonUnknownSource, schemas.ReasonUnknownTenant, schemas.ReasonUnknownMetric:
		status, c = http.StatusUnprocessableEntity, codeUnknownName
	case schemas.ReasonTooOld, schemas.ReasonInFuture:
		status, c = http.StatusUnprocessableEntity, codeBeyondTrust
	case schemas.ReasonSourceNotAllowed, schemas.ReasonTenantNotAllowed:
		status, c = http.StatusForbidden, codeNotAllowed
	case schemas.ReasonInternal:
		status, c = http.StatusInternalServerError, codeInternal
	}
	p := newProblem(status, c, r.Detail)
	p.Reason, p.Field = r.Reason, r.Field
	return p
}
