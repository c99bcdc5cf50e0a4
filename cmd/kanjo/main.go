// Command kanjo is the one binary: each stage, the month end and the tools are its subcommands.
//
// Exit codes: 0 done; 1 it ran and something is wrong (a difference, a problem found, a dependency ill, an invariant that broke:
// the last line says which); 2 it was asked wrongly (flags, configuration).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/schemas"
)

// version is set by the build.
var version = "unknown"

// The exit codes.
const (
	exitWrong = 1
	exitUsage = 2
)

// exitError carries the code that a command asks for; its message, if any, has been printed where it belongs.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e exitError) Unwrap() error { return e.err }

func main() {
	engines.RunChild() // never returns in a process that was started as an engine
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	var c cli
	code := -1
	parser, err := newParser(&c, stdout, stderr, func(n int) { code = n })
	if err != nil {
		panic(err) // the grammar is wrong: no flag of a user can cause it
	}
	kctx, err := parser.Parse(args)
	if code >= 0 {
		return code // help or version was printed
	}
	if err != nil {
		fmt.Fprintf(stderr, "kanjo: %v (kanjo --help lists the commands, kanjo COMMAND --help its flags)\n", err)
		return exitUsage
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go stopOnSignal(cancel, stderr)

	kctx.BindTo(ctx, (*context.Context)(nil))
	err = kctx.Run(&env{out: stdout, err: stderr, log: c.logger(stderr)}, &c.Globals)
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		if exit.err != nil {
			fmt.Fprintf(stderr, "kanjo: %v\n", exit.err)
		}
		return exit.code
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		fmt.Fprintln(stderr, "kanjo: stopped by a signal")
		return exitWrong
	default:
		fmt.Fprintf(stderr, "kanjo: %v\n", err)
		if errors.Is(err, syscall.ECONNREFUSED) {
			fmt.Fprintf(stderr, "nothing listens there: %[1]s dev starts everything on this machine, %[1]s doctor looks at each dependency of another installation\n", invoked())
		}
		return exitWrong
	}
}

// newParser makes the parser of the command line; exit is called when help or the version was printed.
func newParser(c *cli, stdout, stderr io.Writer, exit func(int)) (*kong.Kong, error) {
	return kong.New(c, kong.Name("kanjo"), kong.Description("Meters usage, stops it at its limits, and bills it with proof."),
		kong.DefaultEnvars("KANJO"), kong.Writers(stdout, stderr), kong.ConfigureHelp(kong.HelpOptions{Compact: true}), kong.Exit(exit),
		kong.Vars{"version": version, "dedup_window": schemas.DedupWindow.String(), "topic_raw": schemas.TopicRaw})
}

// invoked is how the reader has called this program, so that a command that is shown can be typed as it stands.
func invoked() string { return os.Args[0] }

// stopOnSignal asks for an orderly stop at the first SIGINT or SIGTERM and exits at once at the second.
func stopOnSignal(cancel context.CancelFunc, stderr io.Writer) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	s := <-signals
	fmt.Fprintf(stderr, "kanjo: %v: draining; a second signal exits at once\n", s)
	cancel()
	<-signals
	os.Exit(exitWrong)
}

// env is what a command may use beside its flags.
type env struct {
	out, err io.Writer
	log      *slog.Logger
}
