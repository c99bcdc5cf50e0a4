package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"text/tabwriter"
	"time"

	"github.com/kanjo-dev/kanjo/internal/controlplane"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/doctor"
	"github.com/kanjo-dev/kanjo/internal/setup"
)

// printJSON prints v as indented JSON. A list without elements is [] at every depth, never null: scripts iterate over it.
func printJSON(w io.Writer, v any) error {
	settable := reflect.New(reflect.TypeOf(v)).Elem()
	settable.Set(reflect.ValueOf(v))
	emptyLists(settable)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(settable.Interface())
}

// emptyLists makes the nil slices in v empty ones, as far as they are exported.
func emptyLists(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			emptyLists(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				emptyLists(f)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return // bytes are no list
		}
		if v.IsNil() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		for i := range v.Len() {
			emptyLists(v.Index(i))
		}
	}
}

// table prints rows with aligned columns.
func table(w io.Writer, heading string, rows func(row func(format string, args ...any))) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if heading != "" {
		fmt.Fprintln(tw, heading)
	}
	rows(func(format string, args ...any) { fmt.Fprintf(tw, format+"\n", args...) })
	return tw.Flush()
}

type migrateCmd struct {
	kafkaFlags
	clickhouseFlags
	durableFlags
	Partitions  int32 `help:"Partitions of the usage topics; chosen once, never changed in place." default:"8"`
	Replication int16 `help:"Replicas of each topic; 0 takes the cluster's default." default:"0"`
}

func (c *migrateCmd) Run(ctx context.Context, e *env) error {
	kafka, err1 := c.kafkaFlags.config("migrate")
	ch, err2 := c.clickhouseFlags.config()
	database, err3 := c.durableFlags.config()
	if c.Partitions < 1 || c.Replication < 0 {
		err2 = errors.Join(err2, fmt.Errorf("--partitions %d, --replication %d: want at least 1 and at least 0", c.Partitions, c.Replication))
	}
	if err := errors.Join(err1, err2, err3); err != nil {
		return exitError{exitUsage, err}
	}
	err := setup.Migrate(ctx, kafka, ch, c.Partitions, c.Replication, e.log)
	if err != nil || database == nil {
		return err
	}
	return migrateDurable(ctx, *database)
}

type applyCmd struct {
	kafkaFlags
	Files  []string `short:"f" name:"file" required:"" help:"YAML files, or directories of them." type:"path"`
	DryRun bool     `help:"Check and print the plan; publish nothing."`
	JSON   bool     `name:"json" help:"Print the plan, or the problems, as JSON."`
}

func (c *applyCmd) Run(ctx context.Context, e *env) error {
	kafka, err := c.config("apply")
	if err != nil {
		return exitError{exitUsage, err}
	}
	set, _ := controlplane.Parse(c.Files...) // its problems are among the plan's
	options := controlplane.Options{Now: time.Now()}
	var plan controlplane.Plan
	var problems controlplane.Problems
	if c.DryRun {
		dir, err := directory.Load(ctx, kafka)
		if err != nil {
			return err
		}
		options.FinalUntil = controlplane.FinalUntil(ctx, kafka)
		plan, problems = controlplane.MakePlan(set, dir, options)
	} else if plan, problems, err = controlplane.Apply(ctx, kafka, set, options); err != nil {
		return err
	}
	if len(problems) > 0 {
		if c.JSON {
			err = printJSON(e.out, map[string]any{"problems": problems})
		} else {
			for _, p := range problems {
				fmt.Fprintln(e.out, p)
			}
		}
		return errors.Join(err, exitError{exitWrong, fmt.Errorf("%d problems; nothing was published", len(problems))})
	}
	if c.JSON {
		return printJSON(e.out, plan)
	}
	n := plan.Counts()
	if n[controlplane.Create]+n[controlplane.Change]+n[controlplane.Delete] <= 50 {
		fmt.Fprint(e.out, plan)
	}
	verb := "published"
	if c.DryRun {
		verb = "would publish"
	}
	_, err = fmt.Fprintf(e.out, "%s: %d created, %d changed, %d deleted, %d unchanged\n", verb,
		n[controlplane.Create], n[controlplane.Change], n[controlplane.Delete], n[controlplane.Unchanged])
	return err
}

type doctorCmd struct {
	kafkaFlags
	redisFlags
	clickhouseFlags
	durableFlags
	LagMax int64 `help:"Records a group may be behind before it is worth a word." default:"100000"`
	JSON   bool  `name:"json" help:"Print the findings as JSON."`
}

func (c *doctorCmd) Run(ctx context.Context, e *env) error {
	kafka, err1 := c.kafkaFlags.config("doctor")
	redis, err2 := c.redisFlags.config()
	ch, err3 := c.clickhouseFlags.config()
	database, err4 := c.durableFlags.config()
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return exitError{exitUsage, err}
	}
	groups := []string{"kanjo-enricher", "kanjo-deduper", "kanjo-counters", "kanjo-ledger"}
	if database != nil {
		groups = append(groups, "kanjo-durable")
	}
	findings := doctor.Examine(ctx, doctor.Config{Kafka: kafka, Redis: redis, ClickHouse: ch, Durable: database, LagMax: c.LagMax, Groups: groups})
	var err error
	if c.JSON {
		err = printJSON(e.out, findings)
	} else {
		err = table(e.out, "", func(row func(string, ...any)) {
			for _, f := range findings {
				row("%s\t%s\t%s\t%s", f.Verdict, f.Part, f.Check, f.Detail)
				if f.Do != "" {
					row("\t\t\t→ %s", f.Do)
				}
			}
		})
	}
	if doctor.Worst(findings) == doctor.Fail {
		return errors.Join(err, exitError{code: exitWrong})
	}
	return err
}
