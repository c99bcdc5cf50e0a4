package dev

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kanjo-dev/kanjo/internal/kafka"
)

// startBroker starts the broker on the data in dir and ends the transactions that a crash cut off.
func startBroker(ctx context.Context, dir string, port int, log *slog.Logger) (*kfake.Cluster, error) {
	if err := mendIndexes(dir); err != nil {
		return nil, fmt.Errorf("mend the indexes in %s: %w", dir, err)
	}
	broker, err := kfake.NewCluster(
		kfake.NumBrokers(1), kfake.Ports(port), kfake.DataDir(dir), kfake.ClusterID("kanjo-dev"),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}),
	)
	if err != nil {
		return nil, fmt.Errorf("start the broker on port %d: %w", port, err)
	}
	if err := abortUnfinished(ctx, dir, kafka.Config{Brokers: broker.ListenAddrs(), ClientID: "kanjo-dev"}, log); err != nil {
		broker.Close()
		return nil, fmt.Errorf("end the transactions that a crash cut off in %s: %w", dir, err)
	}
	return broker, nil
}

// unfinished is a transaction without a marker in the log of one partition.
type unfinished struct {
	topic     string
	partition int32
	producer  int64
	epoch     int16
}

// abortUnfinished writes the abort marker of every transaction that no producer has open any more.
//
// After a crash the broker counts such a transaction as aborted but leaves the log without its marker. Three things go wrong
// then: a committed read that ends in the transaction never comes to the end of the partition; a reader that begins
// inside it drops what the same producer commits afterwards, up to its next marker; and after a second crash that next marker,
// if it commits, commits the cut-off transaction too. A broker that runs on writes the marker. So does this.
func abortUnfinished(ctx context.Context, dir string, cfg kafka.Config, log *slog.Logger) error {
	found, err := findUnfinished(dir)
	if err != nil || len(found) == 0 {
		return err
	}
	cl, err := cfg.NewClient()
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	topics, err := adm.ListTopics(ctx)
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	found = slices.DeleteFunc(found, func(u unfinished) bool { // a crash can leave the directory of a topic that was deleted
		_, stands := topics[u.topic].Partitions[u.partition]
		return !stands
	})
	var asked kadm.TopicsSet
	for _, u := range found {
		asked.Add(u.topic, u.partition)
	}
	if len(asked) == 0 {
		return nil
	}
	// A clean stop keeps transactions that were open; the broker ends those by their timeout when nobody else does.
	open, err := adm.DescribeProducers(ctx, asked)
	if err != nil {
		return fmt.Errorf("describe producers: %w", err)
	}
	var markers []kadm.TxnMarkers
	for _, u := range found {
		if _, live := open[u.topic].Partitions[u.partition].ActiveProducers[u.producer]; live {
			continue
		}
		var at kadm.TopicsSet
		at.Add(u.topic, u.partition)
		markers = append(markers, kadm.TxnMarkers{ProducerID: u.producer, ProducerEpoch: u.epoch, Topics: at})
		log.Info("a transaction that a crash cut off is aborted", "topic", u.topic, "partition", u.partition, "producer_id", u.producer, "epoch", u.epoch)
	}
	if len(markers) == 0 {
		return nil
	}
	written, err := adm.WriteTxnMarkers(ctx, markers...)
	if err != nil {
		return fmt.Errorf("write the abort markers: %w", err)
	}
	written.EachPartition(func(p kadm.TxnMarkersPartitionResponse) {
		if p.Err != nil {
			err = errors.Join(err, fmt.Errorf("write the abort marker of %s/%d: %w", p.Topic, p.Partition, p.Err))
		}
	})
	return err
}

// findUnfinished reads the headers of all batches in the broker's directory: each partition is a directory
// partitions/<topic>-<number> of segments <first offset>.dat, and a segment is record batches as they travel, one after another.
func findUnfinished(dir string) ([]unfinished, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "partitions", "*"))
	if err != nil {
		return nil, err
	}
	var found []unfinished
	for _, path := range paths {
		name := filepath.Base(path)
		dash := strings.LastIndexByte(name, '-')
		if dash < 0 {
			continue
		}
		number, err1 := strconv.ParseInt(name[dash+1:], 10, 32)
		topic, err2 := url.PathUnescape(name[:dash])
		if err1 != nil || err2 != nil {
			continue
		}
		open, err := openProducers(path)
		if err != nil {
			return nil, err
		}
		for producer, epoch := range open {
			found = append(found, unfinished{topic, int32(number), producer, epoch})
		}
	}
	return found, nil
}

// openProducers returns the producers of a partition, with their epochs, whose last transactional batch no marker follows.
func openProducers(dir string) (map[int64]int16, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.dat"))
	if err != nil {
		return nil, err
	}
	bases := make(map[string]int64, len(paths))
	for _, path := range paths {
		if bases[path], err = strconv.ParseInt(strings.TrimSuffix(filepath.Base(path), ".dat"), 10, 64); err != nil {
			return nil, fmt.Errorf("%s is not a segment: %w", path, err)
		}
	}
	slices.SortFunc(paths, func(a, b string) int { return int(bases[a] - bases[b]) })
	open := make(map[int64]int16)
	for _, path := range paths {
		if err := scanSegment(path, open); err != nil {
			return nil, err
		}
	}
	return open, nil
}

// The parts of a record batch that are read here (https://kafka.apache.org/documentation/#recordbatch).
const (
	batchHeader   = 61 // bytes up to the records
	batchPrefix   = 12 // bytes that the length does not count
	transactional = 0x10
	control       = 0x20
)

// scanSegment follows in open which transactions begin and end in a segment.
func scanSegment(path string, open map[int64]int16) error {
	return eachBatch(path, func(h []byte) {
		attributes, producer := binary.BigEndian.Uint16(h[21:]), int64(binary.BigEndian.Uint64(h[43:]))
		switch {
		case attributes&control != 0:
			delete(open, producer)
		case attributes&transactional != 0:
			open[producer] = int16(binary.BigEndian.Uint16(h[51:]))
		}
	})
}

// eachBatch calls f with the header of every whole batch of a segment, up to the first thing that is none: the broker cuts the segment
// off there when it opens it.
func eachBatch(path string, f func(header []byte)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	var h [batchHeader]byte
	for at := int64(0); at+batchHeader <= info.Size(); {
		if _, err := file.ReadAt(h[:], at); err != nil {
			return err
		}
		length := int32(binary.BigEndian.Uint32(h[8:]))
		if length < batchHeader-batchPrefix {
			return nil
		}
		if at += batchPrefix + int64(length); at <= info.Size() {
			f(h[:])
		}
	}
	return nil
}

// indexEntry is the size of what the broker keeps of a batch beside its segment, in <first offset>.idx: a version, the low byte
// of the checksum of the rest, the leader epoch, a timestamp that it computes anew, and whether the batch was written in a transaction.
const indexEntry = 15

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// mendIndexes adds the entries that indexes lack. The broker writes a batch and then its entry: when it is killed between them it takes the
// batch, at the next start, as written outside of a transaction, which commits it, and reads every later entry for the wrong batch.
func mendIndexes(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "partitions", "*", "*.dat"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		var entries []byte
		err := eachBatch(path, func(h []byte) {
			e := make([]byte, indexEntry)
			e[0] = 1
			binary.LittleEndian.PutUint32(e[2:], binary.BigEndian.Uint32(h[12:]))
			if binary.BigEndian.Uint16(h[21:])&(transactional|control) == transactional {
				e[14] = 1
			}
			e[1] = byte(crc32.Checksum(e[2:], castagnoli))
			entries = append(entries, e...)
		})
		if err != nil {
			return err
		}
		if err := mendIndex(strings.TrimSuffix(path, ".dat")+".idx", entries); err != nil {
			return err
		}
	}
	return nil
}

func mendIndex(path string, entries []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	whole := info.Size() / indexEntry * indexEntry
	if whole >= int64(len(entries)) {
		return nil
	}
	_, err = f.WriteAt(entries[whole:], whole)
	return err
}
