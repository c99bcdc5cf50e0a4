package calendar

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"sync"
	"time"
)

// The rules come from this file and from nowhere else. time.LoadLocation would not do: it prefers the machine's own zone files
// and takes the embedded ones only where there are none, so two machines could bill one month by different bounds.
//
//go:generate sh update.sh
//go:embed zoneinfo.zip
var zoneinfo []byte

// TzdataVersion returns the release of the IANA database whose rules Load gives.
func TzdataVersion() string { return tzdataVersion }

var (
	zoneFiles = sync.OnceValues(func() (*zip.Reader, error) { return zip.NewReader(bytes.NewReader(zoneinfo), int64(len(zoneinfo))) })
	loaded    sync.Map // name → *time.Location
)

// Load returns the zone with an IANA name. The empty name and "Local", which depend on the machine, are refused.
func Load(name string) (*time.Location, error) {
	if l, ok := loaded.Load(name); ok {
		return l.(*time.Location), nil
	}
	if name == "" || name == "Local" {
		return nil, fmt.Errorf("zone %q: want an IANA name, like Asia/Tokyo", name)
	}
	files, err := zoneFiles()
	if err != nil {
		return nil, fmt.Errorf("open the embedded zone files: %w", err)
	}
	f, err := files.Open(name)
	if err != nil {
		return nil, fmt.Errorf("zone %q: not in the IANA database %s", name, tzdataVersion)
	}
	defer f.Close() //nolint:errcheck // a reader over memory
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read zone %q: %w", name, err)
	}
	l, err := time.LoadLocationFromTZData(name, data)
	if err != nil {
		return nil, fmt.Errorf("read zone %q: %w", name, err)
	}
	loaded.Store(name, l)
	return l, nil
}
