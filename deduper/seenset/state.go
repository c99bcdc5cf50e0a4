package seenset

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/kanjo-dev/kanjo/internal/failpoint"
)

// disk is the directory of a set: every operation on it that lasts. It serves the set and its two background jobs.
type disk struct {
	dir string
	// before is asked before each operation; tests cut there. It is nil otherwise.
	before func(op, path string) error

	mu     sync.Mutex // guards the rest, and is held while the state file is replaced
	stamp  Stamp      // of the snapshot
	runs   []meta     // of the snapshot
	number uint64     // of the newest run
}

func (d *disk) ask(op, path string) error {
	if d.before == nil {
		return nil
	}
	return d.before(op, path)
}

func (d *disk) create(path string) (*os.File, error) {
	if err := d.ask("create", path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
}

func (d *disk) write(f *os.File, b []byte) error {
	if err := d.ask("write", f.Name()); err != nil {
		return err
	}
	_, err := f.Write(b)
	return err
}

func (d *disk) sync(f *os.File) error {
	if err := d.ask("sync", f.Name()); err != nil {
		return err
	}
	return f.Sync()
}

func (d *disk) syncDir() error {
	if err := d.ask("sync", d.dir); err != nil {
		return err
	}
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	return errors.Join(err, f.Close())
}

func (d *disk) rename(from, to string) error {
	if err := d.ask("rename", to); err != nil {
		return err
	}
	return os.Rename(from, to)
}

func (d *disk) remove(path string) error {
	if err := d.ask("remove", path); err != nil {
		return err
	}
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// nextNumber returns the number of a new run.
func (d *disk) nextNumber() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.number++
	return d.number
}

// snapshot is what the state file holds, as one line of JSON and one line with its checksum.
type snapshot struct {
	Version    int    `json:"version"`
	TopicID    string `json:"topic_id"`
	Partitions int32  `json:"partitions"`
	NextOffset int64  `json:"next_offset"`
	LastOffset int64  `json:"last_offset"`
	LastKey    string `json:"last_key"`
	Runs       []meta `json:"runs"`
}

const stateVersion = 1

// replace makes a new snapshot of the old one: with added, without gone, and with the stamp when it is not nil. The new runs
// are synced already. It returns when the snapshot would survive a power loss; only then the files of gone go.
func (d *disk) replace(added []*run, gone []*run, stamp *Stamp) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	goes := make(map[uint64]bool)
	for _, r := range gone {
		goes[r.Number] = true
	}
	next := snapshot{Version: stateVersion}
	for _, m := range d.runs {
		if !goes[m.Number] {
			next.Runs = append(next.Runs, m)
		}
	}
	for _, r := range added {
		next.Runs = append(next.Runs, r.meta)
	}
	s := d.stamp
	if stamp != nil {
		s = *stamp
	}
	next.TopicID, next.Partitions, next.NextOffset = hex.EncodeToString(s.TopicID[:]), s.Partitions, s.NextOffset
	next.LastOffset, next.LastKey = s.LastOffset, hex.EncodeToString(s.LastKey[:])
	b, err := json.Marshal(next)
	if err != nil {
		return err
	}
	b = fmt.Appendf(b, "\n%08x\n", crc32.Checksum(b, castagnoli))

	if len(added) > 0 {
		// The names of the new runs must last before a state file that names them.
		if err := d.syncDir(); err != nil {
			return err
		}
	}
	path := filepath.Join(d.dir, "state")
	f, err := d.create(path + ".tmp")
	if err != nil {
		return err
	}
	err = d.write(f, b)
	if err == nil {
		err = d.sync(f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	failpoint.Hit("deduper.before_snapshot")
	if err := d.rename(path+".tmp", path); err != nil {
		return err
	}
	if err := d.syncDir(); err != nil {
		return err
	}
	failpoint.Hit("deduper.after_snapshot")
	d.stamp, d.runs = s, next.Runs
	for _, r := range gone {
		if err := d.remove(filepath.Join(d.dir, runName(r.Number))); err != nil {
			return err
		}
	}
	return nil
}

// load reads the snapshot. A directory without one is empty. Errors match ErrDamaged unless the disk itself failed.
func (d *disk) load() ([]*run, error) {
	b, err := os.ReadFile(filepath.Join(d.dir, "state"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	line, sum, ok := bytes.Cut(b, []byte("\n"))
	if !ok || string(sum) != fmt.Sprintf("%08x\n", crc32.Checksum(line, castagnoli)) {
		return nil, fmt.Errorf("%w: checksum of the state file", ErrDamaged)
	}
	var s snapshot
	if err := json.Unmarshal(line, &s); err != nil {
		return nil, fmt.Errorf("%w: state file: %w", ErrDamaged, err)
	}
	if s.Version != stateVersion {
		return nil, fmt.Errorf("%w: state file of version %d, this program reads %d", ErrDamaged, s.Version, stateVersion)
	}
	id, err := hex.DecodeString(s.TopicID)
	last, err2 := hex.DecodeString(s.LastKey)
	if err != nil || err2 != nil || len(id) != 16 || len(last) != 16 {
		return nil, fmt.Errorf("%w: topic id %q, last key %q", ErrDamaged, s.TopicID, s.LastKey)
	}
	var runs []*run
	for _, m := range s.Runs {
		r, err := d.openRun(m)
		if err != nil {
			closeRuns(runs)
			return nil, err
		}
		runs = append(runs, r)
		d.number = max(d.number, m.Number)
	}
	d.stamp = Stamp{TopicID: [16]byte(id), Partitions: s.Partitions, NextOffset: s.NextOffset, LastOffset: s.LastOffset, LastKey: Key(last)}
	d.runs = s.Runs
	return runs, nil
}

// sweep removes files that no snapshot names: what a crash left behind.
func (d *disk) sweep() error {
	files, err := os.ReadDir(d.dir)
	if err != nil {
		return err
	}
	named := make(map[string]bool)
	for _, m := range d.runs {
		named[runName(m.Number)] = true
	}
	for _, f := range files {
		if name := f.Name(); strings.HasPrefix(name, "run-") && !named[name] || name == "state.tmp" {
			if err := d.remove(filepath.Join(d.dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// clear makes the directory hold nothing. The state file goes first: without it the runs mean nothing.
func (d *disk) clear() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.remove(filepath.Join(d.dir, "state")); err != nil {
		return err
	}
	if err := d.syncDir(); err != nil {
		return err
	}
	d.stamp, d.runs = Stamp{}, nil
	return d.sweep()
}

func closeRuns(runs []*run) {
	for _, r := range runs {
		_ = r.file.Close() // it was only read since it was synced
	}
}
