package schemas

import (
	"encoding/json"
	"testing"
)

func TestAnOriginIsReadAsItIsWritten(t *testing.T) {
	for _, o := range []Origin{{"usage.raw", 0, 0}, {"usage.raw.partner/eu", 11, 1 << 40}, {"t", 1<<31 - 1, 1<<63 - 1}} {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var back Origin
		if err := json.Unmarshal(text, &back); err != nil || back != o || string(text) != `"`+o.String()+`"` {
			t.Errorf("%v is written as %s and read as %v, %v", o, text, back, err)
		}
	}
	for _, text := range []string{"", "usage.raw", "usage.raw/1", "/1/2", "usage.raw/x/2", "usage.raw/1/x", "usage.raw/-1/2", "usage.raw/1/-2", "usage.raw/2147483648/1"} {
		if o, err := ParseOrigin(text); err == nil {
			t.Errorf("%q is read as %v", text, o)
		}
	}
}
