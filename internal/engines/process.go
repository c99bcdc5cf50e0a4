package engines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	startMax   = 60 * time.Second // a start on two busy cores
	stopMax    = 30 * time.Second // an orderly stop, then SIGKILL
	pollEvery  = 20 * time.Millisecond
	portTries  = 5
	logTailMax = 64 << 10
)

// Dir returns the directory where hack/fetch-engines.sh put the engines: $KANJO_ENGINES_DIR, or
// .cache/kanjo/engines in the home directory.
func Dir() string {
	if dir := os.Getenv("KANJO_ENGINES_DIR"); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return filepath.Join(os.TempDir(), "kanjo-engines")
	}
	return filepath.Join(home, ".cache", "kanjo", "engines")
}

// fetched is a path below Dir, and an error that says what to do when it is not there.
func fetched(elem ...string) (string, error) {
	path := filepath.Join(append([]string{Dir()}, elem...)...)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("engine not fetched, run `make engines` (hack/fetch-engines.sh): %w", err)
	}
	return path, nil
}

// Process is an engine that runs as a child process. It dies when this process dies, however that happens.
// Its methods may be called from several goroutines; Restart of an engine by one at a time.
type Process struct {
	name string
	// ready asks the engine whether it answers; a nil error ends the start.
	ready func(ctx context.Context) error
	// spec makes the command anew for every start.
	spec  func() *exec.Cmd
	log   *tail
	ports []*port

	mu      sync.Mutex
	process *os.Process   // nil: not running
	exited  chan struct{} // closed when the process that was started last has exited
	exitErr error
}

// Pid returns the process id, 0 when the engine is not running.
func (p *Process) Pid() int {
	if process, _ := p.running(); process != nil {
		return process.Pid
	}
	return 0
}

// Exited returns a channel that is closed when the engine has exited, wanted or not. Ask again after a Restart.
func (p *Process) Exited() <-chan struct{} {
	_, exited := p.running()
	return exited
}

func (p *Process) running() (*os.Process, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process, p.exited
}

// Log returns the newest output of the engine, at most 64 KiB.
func (p *Process) Log() string { return p.log.String() }

// Kill ends the engine with SIGKILL and waits until it is gone. Safe twice. Its data stays as the crash left it.
func (p *Process) Kill() error {
	process, exited := p.running()
	if process == nil {
		return nil
	}
	// PostgreSQL's backends outlive their postmaster for a moment and keep its shared memory.
	family := descendants(process.Pid)
	if err := send(process, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	for _, child := range family {
		_ = syscall.Kill(child, syscall.SIGKILL) // Gone already is as well.
	}
	<-exited
	for _, child := range family {
		for alive(child) {
			time.Sleep(time.Millisecond) // It is no child of ours, so there is nothing to wait on.
		}
	}
	return nil
}

// Stop ends the engine in its orderly way (SIGTERM) and waits until it is gone. After 30 seconds it kills it and
// returns an error. Safe twice. Port and data stay, so Restart may follow.
func (p *Process) Stop() error { return p.stop(syscall.SIGTERM) }

func (p *Process) stop(sig syscall.Signal) error {
	process, exited := p.running()
	if process == nil {
		return nil
	}
	p.Resume() // A paused process would never see the signal.
	if err := send(process, sig); err != nil {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-exited:
		return nil
	case <-time.After(stopMax):
		return errors.Join(fmt.Errorf("%s did not stop within %s and was killed", p.name, stopMax), p.Kill())
	}
}

// Pause freezes the engine (SIGSTOP): its connections stay open and nothing answers, as with a network that
// swallows everything.
func (p *Process) Pause() { p.sendFamily(syscall.SIGSTOP) }

// Resume ends a Pause (SIGCONT).
func (p *Process) Resume() { p.sendFamily(syscall.SIGCONT) }

func (p *Process) sendFamily(sig syscall.Signal) {
	process, _ := p.running()
	if process == nil {
		return
	}
	// The parent first, so that it makes no more children meanwhile. What is gone needs no signal.
	_ = send(process, sig)
	for _, child := range descendants(process.Pid) {
		_ = syscall.Kill(child, sig)
	}
}

// start runs the command and waits until ready is content.
func (p *Process) start(ctx context.Context) error {
	if pid := p.Pid(); pid != 0 {
		return fmt.Errorf("start %s: it runs already (process %d)", p.name, pid)
	}
	cmd := p.spec()
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.WaitDelay = 5 * time.Second // for output, should a grandchild keep the pipe open
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	// Of its own process group, so that a Ctrl-C at the terminal reaches us alone and we stop in order.
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL

	exited, started := make(chan struct{}), make(chan error, 1)
	go func() {
		// The kernel sends Pdeathsig when the thread that forked ends, not when the process does. So the thread
		// belongs to this goroutine, which lives as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.mu.Lock()
		p.process, p.exited, p.exitErr = cmd.Process, exited, nil
		p.mu.Unlock()
		started <- nil
		err := cmd.Wait()
		p.mu.Lock()
		p.process, p.exitErr = nil, err
		p.mu.Unlock()
		close(exited)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}

	ctx, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	answer := errNotAsked
	for {
		select {
		case <-exited:
			return p.exitedEarly()
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("start %s: %w; last answer: %w\n%s", p.name, ctx.Err(), answer, p.Log()), p.Kill())
		case <-poll.C:
		}
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		answer = p.ready(attempt)
		cancel()
		if answer != nil {
			continue
		}
		select {
		case <-exited: // Then somebody else answered, on a port that we could not bind.
			return p.exitedEarly()
		default:
			return nil
		}
	}
}

var (
	errNotAsked = errors.New("it was not asked yet")
	errExitZero = errors.New("exit status 0")
)

func (p *Process) exitedEarly() error {
	p.mu.Lock()
	err := p.exitErr
	p.mu.Unlock()
	if err == nil {
		err = errExitZero
	}
	return fmt.Errorf("start %s: it exited: %w\n%s", p.name, err, p.Log())
}

// launch starts the engine for the first time: on the wanted port, or on a free one (wanted is 0), and then on others
// when something took the port in between. count ports are taken; the first is the wanted one. configure is told
// them before every attempt.
func (p *Process) launch(ctx context.Context, wanted, count int, configure func(ports []*port)) error {
	for try := 1; ; try++ {
		ports, err := takePorts(wanted, count)
		if err != nil {
			return fmt.Errorf("start %s: %w", p.name, err)
		}
		p.ports = ports
		configure(ports)
		err = p.start(ctx)
		if err == nil {
			return nil
		}
		p.releasePorts()
		if wanted != 0 || try == portTries || ctx.Err() != nil || !bindFailed(p.Log()) {
			return err
		}
		p.log.reset()
	}
}

// dispose ends the engine for good and gives its ports back.
func (p *Process) dispose() error {
	err := p.Kill()
	p.releasePorts()
	return err
}

func (p *Process) releasePorts() {
	for _, port := range p.ports {
		port.release()
	}
}

func bindFailed(log string) bool {
	log = strings.ToLower(log)
	return strings.Contains(log, "address already in use") || strings.Contains(log, "bindexception") ||
		strings.Contains(log, "could not bind")
}

// send signals a process; one that has exited needs no signal.
func send(process *os.Process, sig syscall.Signal) error {
	if err := process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// alive says whether a process runs; one that is dead and not yet waited for does not.
func alive(pid int) bool {
	state, _, ok := stat(pid)
	return ok && state != "Z" && state != "X"
}

// descendants lists the children of a process and theirs.
func descendants(pid int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if _, parent, ok := stat(child); ok {
			children[parent] = append(children[parent], child)
		}
	}
	var all []int
	for next := children[pid]; len(next) > 0; {
		child := next[0]
		all = append(all, child)
		next = append(next[1:], children[child]...)
	}
	return all
}

func stat(pid int) (state string, parent int, ok bool) {
	fields, err := statFields(pid)
	if err != nil {
		return "", 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return fields[0], parent, err == nil
}

// statFields returns what /proc/<pid>/stat has behind the program's name (proc(5)): the state, the parent and so on.
func statFields(pid int) ([]string, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	// pid (name) state ppid: the name may hold anything, also brackets and spaces.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 13 {
		return nil, fmt.Errorf("%s has %d fields behind the name", path, len(fields))
	}
	return fields, nil
}

// ProcessorTime returns the processor time that a process has used, of the user and of the system, to 10 ms. Benchmarks use it: where others use the
// machine too, it says more than the time that passed.
func ProcessorTime(pid int) (time.Duration, error) {
	fields, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	const tick = time.Second / 100 // what Linux tells programs, whatever it counts by
	return time.Duration(user+system) * tick, nil
}

// tail keeps the newest bytes written to it and passes all of them on.
type tail struct {
	mu  sync.Mutex
	buf []byte
	to  io.Writer // may be nil
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - logTailMax; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	if t.to != nil {
		return t.to.Write(p)
	}
	return len(p), nil
}

func (t *tail) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
