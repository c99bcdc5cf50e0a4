package engines

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// fake is a process that only this file knows: a shell.
func fake(scripts ...string) (p *Process, configured *[]int) {
	configured = new([]int)
	starts := 0
	p = &Process{name: "fake", log: &tail{}}
	p.spec = func() *exec.Cmd {
		script := scripts[min(starts, len(scripts)-1)]
		starts++
		return exec.Command("sh", "-c", script)
	}
	p.ready = func(context.Context) error {
		if strings.Contains(p.Log(), "up") {
			return nil
		}
		return errors.New("not up")
	}
	return p, configured
}

func TestAPortThatWasTakenInBetweenIsReplaced(t *testing.T) {
	const refuse, serve = "echo bind: Address already in use; exit 1", "echo up; exec sleep 1000"
	p, configured := fake(refuse, refuse, serve)
	err := p.launch(t.Context(), 0, 1, func(ports []*port) { *configured = append(*configured, ports[0].number) })
	if err != nil {
		t.Fatal(err)
	}
	if len(*configured) != 3 {
		t.Errorf("it was started on %v, want three ports", *configured)
	}
	if err := p.dispose(); err != nil {
		t.Error(err)
	}
	// A port that was asked for is not replaced.
	p, configured = fake(refuse, serve)
	free, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	free.release()
	if err := p.launch(t.Context(), free.number, 1, func(ports []*port) { *configured = append(*configured, ports[0].number) }); err == nil || len(*configured) != 1 {
		t.Errorf("got %v after starts on %v", err, *configured)
	}
}

func TestAChildOfAnEngineIsKilledWithIt(t *testing.T) {
	p, _ := fake("sleep 1000 & echo up; wait")
	if err := p.launch(t.Context(), 0, 1, func([]*port) {}); err != nil {
		t.Fatal(err)
	}
	family := descendants(p.Pid())
	if len(family) != 1 {
		t.Fatalf("the children are %v", family)
	}
	if err := p.dispose(); err != nil {
		t.Error(err)
	}
	if alive(family[0]) {
		t.Error("the child is alive")
	}
}

func TestTheFetchScriptBringsTheVersionsThatAreStarted(t *testing.T) {
	script, err := os.ReadFile("../../hack/fetch-engines.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"\nKAFKA_VERSION=" + strings.TrimPrefix(kafkaDir, "kafka-") + "\n",
		"\nCHDB_VERSION=" + strings.TrimPrefix(chdbDir, "chdb-") + "\n",
	} {
		if !strings.Contains(string(script), line) {
			t.Errorf("hack/fetch-engines.sh does not have %q", line)
		}
	}
}

func TestTheLogKeepsItsEnd(t *testing.T) {
	var all strings.Builder
	log := &tail{to: &all}
	for range 1000 {
		if _, err := log.Write([]byte(strings.Repeat("x", 199) + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := log.Write([]byte("end")); err != nil {
		t.Fatal(err)
	}
	if got := log.String(); len(got) != logTailMax || !strings.HasSuffix(got, "x\nend") {
		t.Errorf("%d bytes kept", len(got))
	}
	if all.Len() != 200_003 {
		t.Errorf("%d bytes passed on", all.Len())
	}
}
