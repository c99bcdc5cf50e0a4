package seenset

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
)

// A run is a file of entries in the order of their keys:
//
//	pages:  170 entries of 24 bytes (key, digest), the run's number (8 bytes), the page's number (4 bytes), a checksum of the page
//	        (4 bytes); the last page is filled up with zeros
//	tail:   for each page the first 8 bytes of its first key; the words of the filter
//	footer: magic, number, entries, oldest and newest IngestedAt in ms, words of the filter, a checksum of tail and footer
//
// Integers are little endian, keys compare as bytes. The checksums are CRC-32C.
const (
	pageSize       = 4096
	entrySize      = 24
	entriesPerPage = 170
	pageNumberAt   = entriesPerPage * entrySize // 4080
	pageSumAt      = pageSize - 4
	footerSize     = 48
)

// runMagic changes with the format, so that an older run is thrown away, never misread.
const runMagic = 0x314e5552_4a4e414b // "KANJRUN1"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrDamaged is matched by errors that say that a snapshot does not check. The set must be built again.
var ErrDamaged = errors.New("the snapshot is damaged")

// entry is a key as a run holds it.
type entry struct {
	key    Key
	digest uint64
}

// meta says what a run holds.
type meta struct {
	Number  uint64 `json:"number"`
	Entries int64  `json:"entries"`
	Oldest  int64  `json:"oldest"` // IngestedAt in ms
	Newest  int64  `json:"newest"`
	Sum     uint32 `json:"sum"` // of tail and footer
}

func (m meta) pages() int64 { return (m.Entries + entriesPerPage - 1) / entriesPerPage }

// run is an open run. Its look-ups serve many goroutines, each with its own page.
type run struct {
	meta
	file   *os.File
	size   int64
	index  []uint64 // first 8 bytes of each page's first key
	filter filter
}

func runName(number uint64) string { return fmt.Sprintf("run-%016x", number) }

// runWriter writes a run. The keys come in order.
type runWriter struct {
	meta
	disk  *disk
	path  string
	file  *os.File
	buf   []byte // full pages to be written, then the one being filled
	fill  int    // bytes of entries in the last page
	page  uint32
	index []uint64
	bloom filter
}

const writeBuffer = 64 * pageSize

func (d *disk) createRun(number uint64, atMost int64) (*runWriter, error) {
	w := &runWriter{meta: meta{Number: number, Oldest: 1<<63 - 1, Newest: -1 << 63}, disk: d, path: filepath.Join(d.dir, runName(number)),
		buf: make([]byte, 0, writeBuffer), bloom: newFilter(atMost), index: make([]uint64, 0, atMost/entriesPerPage+1)}
	var err error
	w.file, err = d.create(w.path)
	return w, err
}

func (w *runWriter) add(e *entry) error {
	if w.fill == 0 {
		w.index = append(w.index, binary.BigEndian.Uint64(e.key[:8]))
	}
	w.buf = append(w.buf, e.key[:]...)
	w.buf = binary.LittleEndian.AppendUint64(w.buf, e.digest)
	p := probeOf(&e.key)
	w.bloom.add(&p)
	w.Entries++
	if w.fill += entrySize; w.fill == pageNumberAt {
		return w.endPage()
	}
	return nil
}

func (w *runWriter) endPage() error {
	w.buf = append(w.buf, make([]byte, pageNumberAt-w.fill)...)
	w.buf = binary.LittleEndian.AppendUint64(w.buf, w.Number)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, w.page)
	page := w.buf[len(w.buf)-pageSumAt:]
	w.buf = binary.LittleEndian.AppendUint32(w.buf, crc32.Checksum(page, castagnoli))
	w.page++
	w.fill = 0
	if len(w.buf) >= writeBuffer {
		return w.write()
	}
	return nil
}

func (w *runWriter) write() error {
	err := w.disk.write(w.file, w.buf)
	w.buf = w.buf[:0]
	return err
}

// finish writes the tail, syncs the file and opens the run for reading.
func (w *runWriter) finish() (*run, error) {
	if w.fill > 0 {
		if err := w.endPage(); err != nil {
			return nil, err
		}
	}
	if err := w.write(); err != nil {
		return nil, err
	}
	tail := make([]byte, 0, len(w.index)*8+len(w.bloom)*8+footerSize)
	for _, v := range w.index {
		tail = binary.LittleEndian.AppendUint64(tail, v)
	}
	for _, v := range w.bloom {
		tail = binary.LittleEndian.AppendUint64(tail, v)
	}
	tail = binary.LittleEndian.AppendUint64(tail, runMagic)
	tail = binary.LittleEndian.AppendUint64(tail, w.Number)
	tail = binary.LittleEndian.AppendUint64(tail, uint64(w.Entries))
	tail = binary.LittleEndian.AppendUint64(tail, uint64(w.Oldest))
	tail = binary.LittleEndian.AppendUint64(tail, uint64(w.Newest))
	tail = binary.LittleEndian.AppendUint32(tail, uint32(len(w.bloom)))
	w.Sum = crc32.Checksum(tail, castagnoli)
	tail = binary.LittleEndian.AppendUint32(tail, w.Sum)
	if err := w.disk.write(w.file, tail); err != nil {
		return nil, err
	}
	if err := w.disk.sync(w.file); err != nil {
		return nil, err
	}
	r := &run{meta: w.meta, file: w.file, size: int64(w.page)*pageSize + int64(len(tail)), index: w.index, filter: w.bloom}
	w.file = nil
	return r, nil
}

// abandon drops what has been written, after an error.
func (w *runWriter) abandon() {
	if w.file != nil {
		_ = w.file.Close() // the file is of no use any more
		w.file = nil
	}
}

// openRun opens a run and checks everything but its pages, which are checked when they are read.
func (d *disk) openRun(m meta) (_ *run, err error) {
	path := filepath.Join(d.dir, runName(m.Number))
	damaged := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s: %s", ErrDamaged, path, fmt.Sprintf(format, args...))
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, damaged("is missing")
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = file.Close() // the error at hand matters more
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	tailAt := m.pages() * pageSize
	if m.Entries < 0 || tailAt < 0 || info.Size() < tailAt+footerSize {
		return nil, damaged("%d bytes are too few for %d entries", info.Size(), m.Entries)
	}
	tail := make([]byte, info.Size()-tailAt)
	if _, err := file.ReadAt(tail, tailAt); err != nil {
		return nil, err
	}
	body, footer := tail[:len(tail)-footerSize], tail[len(tail)-footerSize:]
	if sum := crc32.Checksum(tail[:len(tail)-4], castagnoli); sum != m.Sum || binary.LittleEndian.Uint32(footer[44:]) != sum {
		return nil, damaged("checksum of the tail")
	}
	words := int64(binary.LittleEndian.Uint32(footer[40:]))
	if binary.LittleEndian.Uint64(footer) != runMagic || binary.LittleEndian.Uint64(footer[8:]) != m.Number ||
		int64(binary.LittleEndian.Uint64(footer[16:])) != m.Entries || int64(binary.LittleEndian.Uint64(footer[24:])) != m.Oldest ||
		int64(binary.LittleEndian.Uint64(footer[32:])) != m.Newest || int64(len(body)) != m.pages()*8+words*8 || words%wordsPerBlock != 0 || words == 0 {
		return nil, damaged("the footer does not agree with the state file")
	}
	r := &run{meta: m, file: file, size: info.Size(), index: make([]uint64, m.pages()), filter: make(filter, words)}
	for i := range r.index {
		r.index[i] = binary.LittleEndian.Uint64(body[8*i:])
	}
	body = body[8*len(r.index):]
	for i := range r.filter {
		r.filter[i] = binary.LittleEndian.Uint64(body[8*i:])
	}
	return r, nil
}

// readPage reads and checks a page.
func (r *run) readPage(number int64, page []byte) error {
	if _, err := r.file.ReadAt(page[:pageSize], number*pageSize); err != nil {
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: %s: page %d is missing", ErrDamaged, r.file.Name(), number)
		}
		return err
	}
	if crc32.Checksum(page[:pageSumAt], castagnoli) != binary.LittleEndian.Uint32(page[pageSumAt:]) ||
		binary.LittleEndian.Uint64(page[pageNumberAt:]) != r.Number || int64(binary.LittleEndian.Uint32(page[pageNumberAt+8:])) != number {
		return fmt.Errorf("%w: %s: checksum of page %d", ErrDamaged, r.file.Name(), number)
	}
	return nil
}

// entriesOn returns how many entries stand on a page.
func (r *run) entriesOn(number int64) int {
	return int(min(r.Entries-number*entriesPerPage, entriesPerPage))
}

// lookup finds a key for which the filter gave no answer.
func (r *run) lookup(k *Key, page []byte) (digest uint64, found bool, err error) {
	prefix := binary.BigEndian.Uint64(k[:8])
	// Keys with an equal first half may continue from one page to the next, so more than one page can be the right one.
	after := sort.Search(len(r.index), func(i int) bool { return r.index[i] > prefix })
	for number := int64(after) - 1; number >= 0; number-- {
		if err := r.readPage(number, page); err != nil {
			return 0, false, err
		}
		n := r.entriesOn(number)
		i := sort.Search(n, func(i int) bool { return bytes.Compare(page[i*entrySize:][:16], k[:]) >= 0 })
		if i < n && Key(page[i*entrySize:][:16]) == *k {
			return binary.LittleEndian.Uint64(page[i*entrySize+16:]), true, nil
		}
		if r.index[number] != prefix {
			break
		}
	}
	return 0, false, nil
}

// cursor reads the entries of a run in order.
type cursor struct {
	*run
	buf  []byte
	next int64 // entry
	entry
}

// advance reads the next entry; false at the end.
func (c *cursor) advance() (bool, error) {
	if c.next >= c.Entries {
		return false, nil
	}
	at := int(c.next % entriesPerPage)
	if at == 0 {
		if c.buf == nil {
			c.buf = make([]byte, pageSize)
		}
		if err := c.readPage(c.next/entriesPerPage, c.buf); err != nil {
			return false, err
		}
	}
	c.key = Key(c.buf[at*entrySize:][:16])
	c.digest = binary.LittleEndian.Uint64(c.buf[at*entrySize+16:])
	c.next++
	return true, nil
}

// merge writes the entries of several runs as one. stop ends it early.
func (d *disk) merge(number uint64, runs []*run, stop <-chan struct{}) (_ *run, err error) {
	var total int64
	for _, r := range runs {
		total += r.Entries
	}
	w, err := d.createRun(number, total)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.abandon()
		}
	}()
	cursors := make([]*cursor, 0, len(runs))
	for _, r := range runs {
		w.Oldest, w.Newest = min(w.Oldest, r.Oldest), max(w.Newest, r.Newest)
		c := &cursor{run: r}
		more, err := c.advance()
		if err != nil {
			return nil, err
		}
		if more {
			cursors = append(cursors, c)
		}
	}
	var last Key
	for len(cursors) > 0 {
		if w.Entries&0xfff == 0 {
			select {
			case <-stop:
				return nil, errStopped
			default:
			}
		}
		// Few runs are merged at once, so the smallest key is found by looking at each.
		least := 0
		for i := 1; i < len(cursors); i++ {
			if compareKeys(&cursors[i].key, &cursors[least].key) < 0 {
				least = i
			}
		}
		c := cursors[least]
		// A key stands twice when the log was replayed over it; both say the same.
		if w.Entries == 0 || c.key != last {
			if err := w.add(&c.entry); err != nil {
				return nil, err
			}
			last = c.key
		}
		more, err := c.advance()
		if err != nil {
			return nil, err
		}
		if !more {
			cursors = slices.Delete(cursors, least, least+1)
		}
	}
	return w.finish()
}

var errStopped = errors.New("stopped")

func compareKeys(a, b *Key) int {
	if c := cmp.Compare(binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(b[:8])); c != 0 {
		return c
	}
	return cmp.Compare(binary.BigEndian.Uint64(a[8:]), binary.BigEndian.Uint64(b[8:]))
}
