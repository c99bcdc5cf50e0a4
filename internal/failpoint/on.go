//go:build failpoints

package failpoint

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Hit kills the process with SIGKILL when the environment says so: KANJO_FAILPOINTS is a comma-separated list of
// name=n, and the n-th Hit of that name (counted from 1) is the last thing the process does.
func Hit(name string) {
	mu.Lock()
	defer mu.Unlock()
	if left == nil {
		left = make(map[string]int)
		for entry := range strings.SplitSeq(os.Getenv("KANJO_FAILPOINTS"), ",") {
			if k, v, ok := strings.Cut(entry, "="); ok {
				n, err := strconv.Atoi(v)
				if err != nil {
					panic("failpoint: KANJO_FAILPOINTS: " + entry)
				}
				left[k] = n
			}
		}
	}
	n, armed := left[name]
	if !armed {
		return
	}
	if n--; n > 0 {
		left[name] = n
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal arrives; nothing after the point may run
}

var (
	mu   sync.Mutex
	left map[string]int
)
