package deduper

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// stateDir is the directory of one instance, locked for this process.
type stateDir struct {
	path string
	// instance names the instance for as long as the directory lives, so that a restarted process fences its own unfinished
	// transaction at once instead of waiting for its timeout.
	instance string
	lock     *os.File
}

func openStateDir(path string) (*stateDir, error) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("deduper: make the state directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("deduper: open the lock of the state directory: %w", err)
	}
	// The kernel gives the lock back when the process dies, however it dies.
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, stop("deduper: the state directory %s is in use by another process: give each instance a directory of its own", path)
		}
		return nil, fmt.Errorf("deduper: lock the state directory %s: %w", path, err)
	}
	d := &stateDir{path: path, lock: lock}
	if d.instance, err = instanceName(filepath.Join(path, "instance")); err != nil {
		lock.Close()
		return nil, err
	}
	return d, nil
}

// instanceName returns the name in the file, and invents one when there is none. A name lost in a crash costs one
// transaction timeout and nothing else, so the file is not synced.
func instanceName(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("deduper: read the instance name: %w", err)
	}
	if name := strings.TrimSpace(string(b)); name != "" {
		return name, nil
	}
	name := strings.ToLower(rand.Text()[:12])
	if err := os.WriteFile(file, []byte(name+"\n"), 0o644); err != nil {
		return "", fmt.Errorf("deduper: write the instance name: %w", err)
	}
	return name, nil
}

// close releases the directory.
func (d *stateDir) close() { _ = d.lock.Close() } // nothing was written through it
