package producer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// AdmissionConfig says how to reach the gateway.
type AdmissionConfig struct {
	URL string // of the gateway, such as https://kanjo.example
	Key string // <key id>.<secret>, with the permission admit, and ingest where settlements carry events
	// Tenant is asked for when an ask names none. It may be empty when the key is bound to one.
	Tenant string
	// Timeout bounds one call with its one repetition; 1 s by default. It must exceed the gateway's own budget of 150 ms, else a
	// late refusal is taken for a dead gateway.
	Timeout time.Duration
	// Client is http.DefaultClient when nil.
	Client *http.Client
}

// Admission asks the gateway whether work may be done. It is safe for concurrent use.
//
// A nil error is the one answer that lets work begin. *OverLimitError says that a limit is reached; *CannotCountError that it is not
// known, which refuses too; *AdmissionError that the call is wrong or has come too late. All but Seen fail closed.
type Admission struct {
	cfg  AdmissionConfig
	base *url.URL
}

// NewAdmission returns an Admission. It connects to nothing.
func NewAdmission(cfg AdmissionConfig) (*Admission, error) {
	base, err := url.Parse(cfg.URL)
	var errs []error
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		errs = append(errs, fmt.Errorf("admission: URL %q: want http:// or https:// and a host", cfg.URL))
	}
	if id, secret, ok := strings.Cut(cfg.Key, "."); !ok || id == "" || secret == "" {
		errs = append(errs, errors.New("admission: Key: want <key id>.<secret>"))
	}
	if cfg.Timeout < 0 || cfg.Timeout > 0 && cfg.Timeout < 200*time.Millisecond {
		errs = append(errs, fmt.Errorf("admission: Timeout is %s: want at least 200ms, more than the gateway's own budget, or 0 for 1s", cfg.Timeout))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Second
	}
	if cfg.Client == nil {
		cfg.Client = http.DefaultClient
	}
	return &Admission{cfg: cfg, base: base}, nil
}

// Ask is what is to be used. Which limits hold for it is the control plane's decision.
type Ask struct {
	// ID names the reservation. Repeating an ask under its ID takes nothing twice; another ask needs another ID.
	ID     string
	Tenant string // empty: AdmissionConfig.Tenant
	// Amounts are plain decimals by metric: an estimate of what the work may use at most. Money stands under list_cost/JPY.
	Amounts  map[string]string
	Subjects map[string]string // user, workflow, api_key: whatever limits are per
	TTL      time.Duration     // life of the hold; zero is the gateway's default
}

// LimitCount is a limit with its count, in plain decimals.
type LimitCount struct {
	Limit     string    `json:"limit"`
	Metric    string    `json:"metric"`
	Per       string    `json:"per"`
	Subject   string    `json:"subject"`
	Window    string    `json:"window"`
	Start     time.Time `json:"start"`
	End       time.Time `json:"end"`
	Mode      string    `json:"mode"`
	Maximum   string    `json:"maximum"`
	Used      string    `json:"used"`
	Pending   string    `json:"pending"`
	Held      string    `json:"held"`
	Remaining string    `json:"remaining"`
	Over      bool      `json:"over"`
}

// Reservation is an allowed ask.
type Reservation struct {
	ID, Tenant string
	// Counted is false when the limits could not be counted and each of them says on_unknown: allow.
	Counted  bool
	Replayed bool // the same ask had been allowed before
	Expires  time.Time
	Limits   []LimitCount
}

// Settlement says what was used.
type Settlement struct {
	// Amounts are plain decimals by metric. A reserved metric that is left out is settled as it was reserved: absent is not zero.
	Amounts map[string]string
	// Subjects are of metrics that were not reserved.
	Subjects map[string]string
	// Event is the usage itself. The gateway writes it to Kafka before it answers, so it needs no Emit. Its Reservation is filled in; without Amounts its
	// measures are the amounts.
	Event *Event
}

func (s *Settlement) empty() bool { return len(s.Amounts) == 0 && s.Event == nil }

// OverLimitError says that a limit is reached. Nothing was taken.
type OverLimitError struct {
	Limits []string // the names of those that refuse
	// RetryAfter is when there may be room, 0 when waiting does not help.
	RetryAfter time.Duration
	Counts     []LimitCount
}

// Error names the limits.
func (e *OverLimitError) Error() string {
	s := "over the limit " + strings.Join(e.Limits, ", ")
	if e.RetryAfter > 0 {
		s += fmt.Sprintf("; try again in %s", e.RetryAfter)
	}
	return s
}

// CannotCountError says that it is not known whether there is room. Do not go on: repeat the call under the same ID, or give up.
type CannotCountError struct {
	Reason string // of the gateway's closed list; empty when the gateway itself did not answer
	Err    error
}

// Error says why.
func (e *CannotCountError) Error() string {
	switch {
	case e.Reason == "":
		return fmt.Sprintf("cannot count: the gateway gave no answer: %v", e.Err)
	case e.Err == nil:
		return "cannot count: " + e.Reason
	}
	return fmt.Sprintf("cannot count: %s: %v", e.Reason, e.Err)
}

// Unwrap returns the cause.
func (e *CannotCountError) Unwrap() error { return e.Err }

// AdmissionError says that the gateway refuses the call itself: it is wrong, not permitted, about a reservation that is not there (404), or
// about one that cannot do this any more (409).
type AdmissionError struct {
	Status        int
	Type          string // urn:kanjo:problem:<code>
	Field, Detail string
}

// Error says what is wrong.
func (e *AdmissionError) Error() string {
	return fmt.Sprintf("the gateway refuses the call (%d %s): %s %s", e.Status, strings.TrimPrefix(e.Type, "urn:kanjo:problem:"), e.Field, e.Detail)
}

type askBody struct {
	ID       string            `json:"id,omitempty"`
	Tenant   string            `json:"tenant,omitempty"`
	Subjects map[string]string `json:"subjects,omitempty"`
	Amounts  map[string]string `json:"amounts,omitempty"`
	TTL      string            `json:"ttl,omitempty"`
	Event    json.RawMessage   `json:"event,omitempty"`
}

type answerBody struct {
	Outcome   string       `json:"outcome"`
	State     string       `json:"state"`
	Counted   bool         `json:"counted"`
	Replayed  bool         `json:"replayed"`
	ExpiresAt time.Time    `json:"expires_at"`
	Tenant    string       `json:"tenant"`
	Limits    []LimitCount `json:"limits"`
	Seen      bool         `json:"seen"`
	Known     bool         `json:"known"`

	Type     string   `json:"type"`
	Detail   string   `json:"detail"`
	Field    string   `json:"field"`
	Cause    string   `json:"cause"`
	Violated []string `json:"violated-policies"`
}

func (a *Admission) ask(ctx context.Context, path string, k Ask, event *Event) (*Reservation, error) {
	body, err := a.body(k, event)
	if err != nil {
		return nil, err
	}
	out, err := a.call(ctx, path, body)
	if err != nil {
		return nil, err
	}
	if out.Outcome != "allowed" { // something else than a gateway has answered 200
		return nil, &CannotCountError{Err: fmt.Errorf("the answer says %q", out.Outcome)}
	}
	return &Reservation{ID: k.ID, Tenant: out.Tenant, Counted: out.Counted, Replayed: out.Replayed, Expires: out.ExpiresAt, Limits: out.Limits}, nil
}

func (a *Admission) body(k Ask, event *Event) (*askBody, error) {
	b := &askBody{ID: k.ID, Tenant: a.tenant(k.Tenant), Subjects: k.Subjects, Amounts: k.Amounts}
	if k.TTL > 0 {
		b.TTL = k.TTL.String()
	}
	if event != nil {
		e := *event
		e.Reservation = k.ID
		if e.Tenant == "" {
			e.Tenant = b.Tenant
		}
		var err error
		if b.Event, err = e.Structured(); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (a *Admission) tenant(named string) string {
	if named != "" {
		return named
	}
	return a.cfg.Tenant
}

// Reserve holds the amounts until they are settled or released, or the hold's life is over. All limits are tested and taken together,
// or none is.
func (a *Admission) Reserve(ctx context.Context, k Ask) (*Reservation, error) {
	return a.ask(ctx, "/v1/reservations", k, nil)
}

// Count counts the amounts as used at once, if they fit. The event, which may be nil, is in Kafka when Count returns nil.
func (a *Admission) Count(ctx context.Context, k Ask, event *Event) (*Reservation, error) {
	return a.ask(ctx, "/v1/count", k, event)
}

// Check answers as Reserve would and takes nothing, so it promises nothing. The ask has no ID.
func (a *Admission) Check(ctx context.Context, k Ask) (*Reservation, error) {
	k.ID, k.TTL = "", 0
	return a.ask(ctx, "/v1/check", k, nil)
}

// Settle says what was used. It is recorded whatever was reserved, and however late.
func (a *Admission) Settle(ctx context.Context, tenant, id string, s Settlement) error {
	b, err := a.body(Ask{ID: id, Tenant: tenant, Amounts: s.Amounts, Subjects: s.Subjects}, s.Event)
	if err != nil {
		return err
	}
	b.ID = ""
	_, err = a.call(ctx, "/v1/reservations/"+url.PathEscape(id)+"/settle", b)
	return err
}

// Release gives a reservation back, of which nothing was used. Releasing again changes nothing.
func (a *Admission) Release(ctx context.Context, tenant, id string) error {
	_, err := a.call(ctx, "/v1/reservations/"+url.PathEscape(id)+"/release", &askBody{Tenant: a.tenant(tenant)})
	return err
}

// Extend lets a hold live for ttl from now and returns when it ends: the counters have a longest life, counted from when the hold was made.
func (a *Admission) Extend(ctx context.Context, tenant, id string, ttl time.Duration) (time.Time, error) {
	out, err := a.call(ctx, "/v1/reservations/"+url.PathEscape(id)+"/extend", &askBody{Tenant: a.tenant(tenant), TTL: ttl.String()})
	if err != nil {
		return time.Time{}, err
	}
	return out.ExpiresAt, nil
}

// Seen says whether a message was seen before; from now on it was. When that is not known it says false and returns the reason: go on, for a
// double answer is better than none, and the counter behind it guards the money. A delivery that repeats its own lost question
// sends the same token.
func (a *Admission) Seen(ctx context.Context, tenant, message, token string) (bool, error) {
	out, err := a.call(ctx, "/v1/seen", &struct {
		Tenant string `json:"tenant,omitempty"`
		Key    string `json:"key"`
		Token  string `json:"token,omitempty"`
	}{a.tenant(tenant), message, token})
	if err != nil {
		return false, err
	}
	if !out.Known {
		return false, &CannotCountError{Reason: "seen", Err: errors.New("the gateway could not look the message up")}
	}
	return out.Seen, nil
}

// Do reserves, runs work only if that is allowed, and settles or releases by what work returns: a nil error settles with the settlement; an
// error settles when the settlement says that something was used all the same, else it releases. A release says that the provider was
// provably not reached, so work that was cut off returns what it may have used. When work panics nothing is sent: the hold ends by
// itself. The error is the refusal, or joins those of work and of the settlement.
func (a *Admission) Do(ctx context.Context, k Ask, work func(context.Context, *Reservation) (Settlement, error)) error {
	r, err := a.Reserve(ctx, k)
	if err != nil {
		return err
	}
	s, workErr := work(ctx, r)
	// What was used stays used when the caller has gone.
	ctx = context.WithoutCancel(ctx)
	switch {
	case !r.Counted && s.Event == nil:
		return workErr // nothing was reserved that could be settled
	case workErr != nil && s.empty():
		err = a.Release(ctx, k.Tenant, k.ID)
		if gone, ok := errors.AsType[*AdmissionError](err); ok && gone.Status == http.StatusNotFound {
			err = nil
		}
	default:
		err = a.Settle(ctx, k.Tenant, k.ID, s)
	}
	if err != nil {
		err = fmt.Errorf("settle or release reservation %q (what it holds ends by itself): %w", k.ID, err)
	}
	return errors.Join(workErr, err)
}

// call posts a body and reads the answer. A call whose answer was lost is repeated once: every call is idempotent.
func (a *Admission) call(ctx context.Context, path string, body any) (*answerBody, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode the call: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	out, status, header, err := a.post(ctx, path, b)
	if err != nil && ctx.Err() == nil {
		out, status, header, err = a.post(ctx, path, b)
	}
	if err != nil {
		return nil, &CannotCountError{Err: err}
	}
	retry := time.Duration(0)
	if n, err := strconv.Atoi(header.Get("Retry-After")); err == nil {
		retry = time.Duration(n) * time.Second
	}
	switch {
	case status == http.StatusOK:
		return out, nil
	case status == http.StatusTooManyRequests && out.Type == "urn:kanjo:problem:over-limit":
		return nil, &OverLimitError{Limits: out.Violated, RetryAfter: retry, Counts: out.Limits}
	case status >= 400 && status < 500 && status != http.StatusTooManyRequests && strings.HasPrefix(out.Type, "urn:kanjo:problem:"):
		return nil, &AdmissionError{Status: status, Type: out.Type, Field: out.Field, Detail: out.Detail}
	}
	reason := out.Cause
	if reason == "" {
		reason = strings.TrimPrefix(out.Type, "urn:kanjo:problem:")
	}
	return nil, &CannotCountError{Reason: reason, Err: fmt.Errorf("status %d: %s", status, out.Detail)}
}

const answerBytesMax = 1 << 20

func (a *Admission) post(ctx context.Context, path string, body []byte) (*answerBody, int, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(a.base.String(), "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+a.cfg.Key)
	resp, err := a.cfg.Client.Do(req)
	if err != nil {
		return nil, 0, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, answerBytesMax))
	if err != nil {
		return nil, 0, nil, fmt.Errorf("read the answer: %w", err)
	}
	out := new(answerBody)
	if err := json.Unmarshal(b, out); err != nil {
		return nil, 0, nil, fmt.Errorf("status %d with an answer that is no JSON: %w", resp.StatusCode, err)
	}
	return out, resp.StatusCode, resp.Header, nil
}
