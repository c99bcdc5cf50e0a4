package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/kanjo-dev/kanjo/internal/replay"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

type rejectedCmd struct {
	List rejectedListCmd `cmd:"" help:"List rejected records that are still open, newest first."`
	Show rejectedShowCmd `cmd:"" help:"Show one with its original bytes."`

	Replay rejectedReplayCmd `cmd:"" help:"Send records again through their door, after what was wrong has been mended."`
}

type rejectedListCmd struct {
	ledgerFlags
	Reason string `help:"Only this reason."`
	Source string `help:"Only records that claim this source."`
	All    bool   `help:"Also those that were replayed or whose identity stands, with what became of each."`
	Limit  int    `help:"At most this many." default:"100"`
	JSON   bool   `name:"json" help:"Print them as JSON."`
}

func (c *rejectedListCmd) Run(ctx context.Context, e *env) error {
	_, conn, _, err := c.open(ctx, "rejected")
	if err != nil {
		return err
	}
	defer conn.Close()
	list, err := ledger.ListRejected(ctx, conn, ledger.RejectedQuery{Reason: schemas.Reason(c.Reason), Source: c.Source, Open: !c.All, Limit: c.Limit})
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(e.out, list)
	}
	err = table(e.out, "ORIGIN\tINGESTED\tREASON\tSOURCE\tID\tOUTCOME\tDETAIL", func(row func(string, ...any)) {
		for _, r := range list {
			// What a record claims is hostile until proved otherwise: control characters must not reach the terminal.
			row("%s\t%s\t%s\t%s\t%s\t%s\t%s", r.Origin, r.IngestedAt.Format("2006-01-02 15:04:05"), r.Reason, printable(r.Source), printable(r.ID),
				outcome(&r), printable(r.Detail))
		}
	})
	if len(list) == 0 && !c.All {
		fmt.Fprintln(e.out, "nothing is open (--all lists also what is settled)")
	}
	return err
}

// outcome says what became of a rejected record.
func outcome(r *ledger.Rejected) string {
	var words string
	switch r.Outcome {
	case ledger.Open:
		words = "open"
	case ledger.UnderWay:
		words = "under way"
		if r.Replay.Sent == nil {
			words = "perhaps not sent"
		}
	case ledger.Accepted:
		words = "accepted"
	case ledger.Stands:
		words = fmt.Sprintf("counts already, from %s", r.Where)
	case ledger.Conflict:
		words = "in conflict, see kanjo conflicts show " + r.Where.String()
	case ledger.RejectedAgain:
		words = "rejected again, see " + r.Where.String()
	}
	if r.Replay == nil {
		return words
	}
	return "replayed " + r.Replay.At.UTC().Format("2006-01-02 15:04:05") + ": " + words
}

// printable quotes what a terminal might obey, and cuts what would not fit a line.
func printable(s string) string {
	q := strconv.Quote(s)
	if len(q) > 122 {
		q = q[:120] + "…\""
	}
	if q == `"`+s+`"` {
		return s
	}
	return q
}

type rejectedShowCmd struct {
	ledgerFlags
	Origin string `arg:"" help:"topic/partition/offset, as list prints it."`
	JSON   bool   `name:"json" help:"Print it as JSON, bytes in base64."`
	Raw    bool   `help:"Print the original value and nothing else."`
}

func (c *rejectedShowCmd) Run(ctx context.Context, e *env) error {
	origin, err := schemas.ParseOrigin(c.Origin)
	if err != nil {
		return exitError{exitUsage, err}
	}
	_, conn, _, err := c.open(ctx, "rejected")
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := ledger.ShowRejected(ctx, conn, origin)
	switch {
	case err != nil:
		return err
	case c.JSON:
		return printJSON(e.out, r)
	case c.Raw:
		_, err = e.out.Write(r.Value)
		return err
	}
	fmt.Fprintf(e.out, "origin    %s\ningested  %s\nreason    %s\ndetail    %s\nsource    %s\nid        %s\noutcome   %s\n",
		r.Origin, r.IngestedAt.Format("2006-01-02T15:04:05.000Z07:00"), r.Reason, printable(r.Detail), printable(r.Source), printable(r.ID), outcome(r))
	if r.Replay != nil && r.Replay.Grant != "" {
		fmt.Fprintf(e.out, "grant     %s\n", printable(r.Replay.Grant))
	}
	fmt.Fprintf(e.out, "key       %q\n", r.Key)
	for _, h := range r.Headers {
		fmt.Fprintf(e.out, "header    %q: %q\n", h.Key, h.Value)
	}
	_, err = fmt.Fprintf(e.out, "value     %d bytes:\n%q\n", len(r.Value), r.Value)
	return err
}

type rejectedReplayCmd struct {
	ledgerFlags
	Origins []string `arg:"" name:"origin" help:"topic/partition/offset, as list prints it."`
	Grant   string   `help:"Why an event's time stands beyond what its source is trusted with; for records rejected as too_old or in_future."`
	Value   string   `name:"value-file" help:"File with the mended event, whole, or as data when it came in binary mode, in place of the original bytes; for one origin." type:"existingfile"`
}

func (c *rejectedReplayCmd) Run(ctx context.Context, e *env) error {
	opts := replay.Options{Grant: c.Grant}
	if c.Value != "" {
		if len(c.Origins) != 1 {
			return exitError{exitUsage, errors.New("--value-file mends one record: name one origin")}
		}
		var err error
		if opts.Value, err = os.ReadFile(c.Value); err != nil {
			return exitError{exitUsage, err}
		}
	}
	k, conn, _, err := c.open(ctx, "rejected")
	if err != nil {
		return err
	}
	defer conn.Close()
	var errs []error
	for _, s := range c.Origins {
		origin, err := schemas.ParseOrigin(s)
		if err == nil {
			var to schemas.Origin
			if to, err = replay.Send(ctx, k, conn, origin, opts); err == nil {
				fmt.Fprintf(e.out, "%s replayed as %s\n", origin, to)
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
