package kafka

import (
	"context"
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

func TestOffsetsAreAskedForAgainWhileALeaderChanges(t *testing.T) {
	answer := func(err error) kadm.ListedOffsets {
		return kadm.ListedOffsets{"a": {0: {Topic: "a", Offset: 7}, 1: {Topic: "a", Partition: 1, Offset: 9, Err: err}}}
	}
	for _, c := range []struct {
		name    string
		answers []error
		asked   int
		want    error
	}{
		{"a leader that changes", []error{kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, nil}, 3, nil},
		{"all is well", []error{nil}, 1, nil},
		{"an unknown topic", []error{kerr.UnknownTopicOrPartition}, 1, kerr.UnknownTopicOrPartition},
		{"what time does not heal", []error{kerr.TopicAuthorizationFailed}, 1, kerr.TopicAuthorizationFailed},
	} {
		asked := 0
		got, err := Offsets(t.Context(), func(_ context.Context, topics ...string) (kadm.ListedOffsets, error) {
			asked++
			return answer(c.answers[asked-1]), nil
		}, "a")
		if !errors.Is(err, c.want) || asked != c.asked || !errors.Is(got["a"][1].Err, c.want) || got["a"][1].Offset != 9 {
			t.Errorf("%s: asked %d times, %v, %v", c.name, asked, got, err)
		}
	}
}

func TestOffsetsThatCannotBeAskedForAreAnError(t *testing.T) {
	want := errors.New("unreachable")
	if _, err := Offsets(t.Context(), func(context.Context, ...string) (kadm.ListedOffsets, error) { return nil, want }, "a"); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
}
