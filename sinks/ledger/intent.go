package ledger

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/schemas"
)

// intent is the range that is about to be inserted. It travels as the metadata of the offset commit that completes the
// range before it, so taking the right to insert and saying what will be inserted are one atomic step. The committed offset
// is the range's first.
type intent struct {
	Topic       string `json:"t"` // the topic's id, 32 hexadecimal digits: an incarnation, not a name
	Epoch       uint32 `json:"e"`
	UniqueEpoch uint32 `json:"u"`
	// Last is the offset of the range's last record, Records how many there are: offsets have gaps where transactions end.
	Last    int64 `json:"b"`
	Records int   `json:"n"`
	// RecordedAt, in Unix milliseconds, and Encoder make the rows the same whoever inserts them.
	RecordedAt int64 `json:"at"`
	Encoder    int   `json:"enc"`
}

// completion is the metadata of a commit after which nothing is pending.
type completion struct {
	Topic string `json:"t"`
	Epoch uint32 `json:"e"`
}

// metadataMax is the largest commit metadata that a broker accepts by default.
const metadataMax = 4096

func (i intent) metadata() string { return marshal("intent", i) }

func (c completion) metadata() string { return marshal("done", c) }

func marshal(word string, v any) string {
	b, err := json.Marshal(v)
	if err != nil || len(word)+1+len(b) > metadataMax {
		panic(fmt.Sprintf("ledger: commit metadata of %d bytes: %v", len(b), err)) // numbers and one id: cannot be
	}
	return word + " " + string(b)
}

// parseMetadata reads what an earlier commit carried. Empty metadata, which an operator's tool leaves when it moves an offset,
// means that nothing is pending.
func parseMetadata(text string) (topicID string, pending *intent, err error) {
	if text == "" {
		return "", nil, nil
	}
	word, body, _ := strings.Cut(text, " ")
	switch word {
	case "intent":
		i := new(intent)
		if err := json.Unmarshal([]byte(body), i); err != nil {
			return "", nil, fmt.Errorf("commit metadata %q: %w", text, err)
		}
		return i.Topic, i, nil
	case "done":
		var c completion
		if err := json.Unmarshal([]byte(body), &c); err != nil {
			return "", nil, fmt.Errorf("commit metadata %q: %w", text, err)
		}
		return c.Topic, nil, nil
	}
	return "", nil, fmt.Errorf("commit metadata %q is of another program or a newer version: is the group used by something else?", text)
}

func (i intent) stamp(partition int32) stamp {
	return stamp{recordedAt: time.UnixMilli(i.RecordedAt).UTC(), epoch: i.Epoch, uniqueEpoch: i.UniqueEpoch, partition: partition}
}

// token names the part-th insert of the range [first, i.Last] in the deduplication window of its table. The same token
// always stands for the same bytes, so it carries the time of the claim, which is in the rows. That also keeps a repair
// possible: when an operator sets the group back to record a range again, it is claimed anew, and its token is not one that
// ClickHouse remembers from the rows that were lost.
func (i intent) token(partition int32, first int64, part int) string {
	return fmt.Sprintf("v%d/%s/%d/%d/%d/%d/%d", i.Encoder, i.Topic, partition, first, i.Last, i.RecordedAt, part)
}

func parseKey(text string) (schemas.EventKey, error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(schemas.EventKey{}) {
		return schemas.EventKey{}, fmt.Errorf("event key %q: want 32 hexadecimal digits", text)
	}
	return schemas.EventKey(b), nil
}
