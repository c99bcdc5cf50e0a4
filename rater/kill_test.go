package rater

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/schemas"
)

// A child is this test binary, re-executed to close a month of the world's control plane, or to credit an invoice.
const (
	childEnv        = "KANJO_RATER_TEST_CHILD" // the period, or an invoice to credit
	childBrokerEnv  = "KANJO_RATER_TEST_BROKER"
	childEngineEnv  = "KANJO_RATER_TEST_ENGINE"
	childBaseEnv    = "KANJO_RATER_TEST_DATABASE"
	childTenantsEnv = "KANJO_RATER_TEST_TENANTS"

	childFenced = 3
)

// childNow is late enough for every month that the children close, and none of them is old.
var childNow = time.Date(2027, 1, 20, 0, 0, 0, 0, time.UTC)

func runChild() {
	period := os.Getenv(childEnv)
	if period == "" {
		return
	}
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		if errors.Is(err, document.ErrFenced) {
			os.Exit(childFenced)
		}
		os.Exit(1)
	}
	tenants, err := strconv.Atoi(os.Getenv(childTenantsEnv))
	if err != nil {
		fail(err)
	}
	conn, err := clickhouse.Open(&clickhouse.Options{Protocol: clickhouse.HTTP, Addr: []string{os.Getenv(childEngineEnv)}, Auth: clickhouse.Auth{Database: os.Getenv(childBaseEnv)}})
	if err != nil {
		fail(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dir, err := buildControlPlane(tenants)
	if err != nil {
		fail(err)
	}
	deps := Deps{
		Kafka: kafka.Config{
			Brokers: []string{os.Getenv(childBrokerEnv)}, SessionTimeout: 3 * time.Second, HeartbeatInterval: 200 * time.Millisecond,
			RebalanceTimeout: 4 * time.Second, TransactionTimeout: 2 * time.Second,
		},
		ClickHouse: conn, Directory: dir, Now: func() time.Time { return childNow },
	}
	if strings.HasPrefix(period, "INV-") {
		_, err = Credit(ctx, deps, CreditOptions{Number: period, Reason: "of a test"})
	} else {
		_, err = Close(ctx, deps, Options{Period: period})
	}
	if err != nil {
		fail(err)
	}
	os.Exit(0)
}

func (w *world) startChild(period string, tenants int, env ...string) *exec.Cmd {
	w.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+period, childBrokerEnv+"="+w.broker.Addr, childEngineEnv+"="+w.ch.Addr, childBaseEnv+"="+w.database, childTenantsEnv+"="+strconv.Itoa(tenants))
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = w.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	return cmd
}

func wasKilled(cmd *exec.Cmd) bool {
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// sendMonth sends some usage of every tenant in a period.
func (w *world) sendMonth(period string, tenants int) {
	w.Helper()
	ym, err := calendar.ParseYearMonth(period)
	if err != nil {
		w.Fatal(err)
	}
	tokyo, err := calendar.Load("Asia/Tokyo")
	if err != nil {
		w.Fatal(err)
	}
	start := calendar.MonthOf(ym.Year, ym.Month, tokyo).Start
	var events []schemas.UsageEvent
	for i := range tenants {
		for j := range 5 {
			events = append(events, usage(i, fmt.Sprint(period, "/", i, "/", j), start.Add(time.Duration(j)*time.Hour), int64(100*i+j+1), 12345, "small"))
		}
	}
	w.send(events...)
}

// whole checks that the documents are one per tenant and period, numbered without a gap, and the same when they are made again.
func (w *world) whole(periods []string, tenants int) {
	w.Helper()
	seen := make(map[document.TenantPeriod]bool)
	for i, d := range w.documents() {
		e := &d.Envelope
		if e.Sequence != int64(i+1) {
			w.Errorf("document %d has sequence number %d", i+1, e.Sequence)
		}
		seen[document.TenantPeriod{Tenant: e.Tenant, Period: e.Period}] = true
	}
	if len(seen) != len(periods)*tenants || len(w.documents()) != len(seen) {
		w.Errorf("%d documents for %d tenants and periods, want %d", len(w.documents()), len(seen), len(periods)*tenants)
	}
	report, err := Verify(w.Context(), w.deps(), VerifyOptions{})
	if err != nil {
		w.Fatal(err)
	}
	if report.Err() != nil || report.Recomputed != len(periods)*tenants {
		w.Errorf("verify: %v, %d made again", report.Err(), report.Recomputed)
	}
}

func TestAClosePulledDownAtAnyMomentIsResumed(t *testing.T) {
	const tenants = 30
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, controlPlane(t, tenants))
	w.now = childNow
	var periods []string
	killed := 0
	for i := range 4 {
		period := calendar.YearMonth{Year: 2026, Month: 1}.Add(i).String()
		periods = append(periods, period)
		w.sendMonth(period, tenants)
		for range 3 {
			victim := w.startChild(period, tenants)
			// Anywhere between its start and its end, which comes after about a second on an idle machine.
			time.Sleep(time.Duration(rng.Int64N(int64(1500 * time.Millisecond))))
			_ = victim.Process.Kill() // it may have ended by itself
			_ = victim.Wait()         // how it ended is asked below
			if wasKilled(victim) {
				killed++
			}
		}
		w.close(Options{Period: period})
	}
	t.Logf("%d of 12 were killed before they were done", killed)
	w.whole(periods, tenants)
}

func TestTwoProcessesAtOnceGiveOneInvoice(t *testing.T) {
	const tenants = 30
	w := newWorld(t, controlPlane(t, tenants))
	w.now = childNow
	periods := []string{"2026-02", "2026-03"}
	for _, period := range periods {
		w.sendMonth(period, tenants)
		a, b := w.startChild(period, tenants), w.startChild(period, tenants)
		errA, errB := a.Wait(), b.Wait()
		if errA != nil && errB != nil {
			t.Errorf("%s: neither got to its end: %v, %v", period, errA, errB)
		}
		for _, cmd := range []*exec.Cmd{a, b} {
			if code := cmd.ProcessState.ExitCode(); code != 0 && code != childFenced {
				t.Errorf("%s: a close ended with exit code %d", period, code)
			}
		}
	}
	w.whole(periods, tenants)
}
