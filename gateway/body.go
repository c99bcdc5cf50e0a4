package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// The first step of a body's memory, when its length is declared and when not.
const (
	declaredStep   = 64 << 10
	undeclaredStep = 4 << 10
)

// receive reads the body to its end. Its memory is taken of the budget step by step as the bytes arrive, for a client may declare as much as it
// likes and send nothing. Unless there is a problem the caller gives the taken bytes back.
func (g *Gateway) receive(c *call, most int) (body []byte, taken int, p *problem) {
	size := c.r.ContentLength
	step, last := undeclaredStep, most+1 // one byte more than the body, in which its end is met
	if size > int64(most) {
		return nil, 0, newProblem(http.StatusRequestEntityTooLarge, codeTooLarge, fmt.Sprintf("the body has %d bytes, at most %d are taken: send smaller batches", size, most))
	}
	if size >= 0 {
		step, last = declaredStep, int(size)+1
	}
	defer func() {
		if p != nil {
			g.budget.give(c.keyID, taken, 0)
		}
	}()
	// The deadline is lifted with the body's end, for one that passed later would look like a client that has gone away. After a problem
	// it stays, since the server reads on before it answers. A writer that knows no deadlines is no connection.
	conn := http.NewResponseController(c.w)
	_ = conn.SetReadDeadline(time.Now().Add(g.cfg.BodyTimeout))
	in := http.MaxBytesReader(c.w, c.r.Body, int64(most))
	for {
		if len(body) == cap(body) {
			grown := min(max(step, 2*cap(body)), last)
			if lacks := g.budget.take(c.keyID, grown-taken, 0); lacks != nothing {
				return nil, taken, g.lacking(c, lacks)
			}
			taken = grown
			body = append(make([]byte, 0, grown), body...)
		}
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			_ = conn.SetReadDeadline(time.Time{})
			return body, taken, nil
		}
		if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, taken, newProblem(http.StatusRequestEntityTooLarge, codeTooLarge, fmt.Sprintf("the body has more than %d bytes: send smaller batches", tooLarge.Limit))
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, taken, newProblem(http.StatusRequestTimeout, codeTimeout, fmt.Sprintf("the body did not come within %s: send smaller batches", g.cfg.BodyTimeout))
		}
		if err != nil {
			return nil, taken, newProblem(http.StatusBadRequest, codeBadRequest, "the body cannot be read to its end: "+err.Error())
		}
	}
}

// lacking is the answer to what does not fit into the budget.
func (g *Gateway) lacking(c *call, what lack) *problem {
	switch what {
	case bytesOfKey:
		return newProblem(http.StatusTooManyRequests, codeTooManyRequests,
			fmt.Sprintf("the bodies of the key %s that are being read, or whose events wait for Kafka, have %d bytes: send fewer at once", c.keyID, g.budget.bytesPerKeyMax)).again(1)
	case bytesOfAll:
		return newProblem(http.StatusServiceUnavailable, codeOverloaded,
			fmt.Sprintf("the bodies that are being read, or whose events wait for Kafka, have %d bytes", g.budget.bytesMax)).again(1)
	}
	return newProblem(http.StatusServiceUnavailable, codeOverloaded, fmt.Sprintf("%d events wait for Kafka to acknowledge them", g.budget.eventsMax)).again(1)
}
