package engines

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// slots is how many hash slots a Redis Cluster has.
const slots = 16384

// RedisCluster is a Redis Cluster of real servers: masters, and one replica for each.
type RedisCluster struct {
	// Masters have even shares of the slots, in this order; Replicas[i] follows Masters[i]. A fail-over does not change the lists.
	Masters, Replicas []*Redis
}

// Addrs are the addresses of all nodes.
func (c *RedisCluster) Addrs() []string {
	var addrs []string
	for _, r := range append(append([]*Redis{}, c.Masters...), c.Replicas...) {
		addrs = append(addrs, r.Addr)
	}
	return addrs
}

// MasterOf returns the index of the master that a slot was given to when the Cluster was made.
func (c *RedisCluster) MasterOf(slot int) int {
	for i := range c.Masters {
		if slot < firstSlot(i+1, len(c.Masters)) {
			return i
		}
	}
	panic(fmt.Sprintf("engines: there is no slot %d", slot))
}

func firstSlot(i, masters int) int { return slots * i / masters }

// RedisClusterForTest starts a Cluster of so many masters with a replica each and returns when every node knows all of it and every
// replica has its master's data. args go over the servers' defaults. Nothing fails over by itself: a test promotes with Promote, so that no
// test waits for a vote.
func RedisClusterForTest(tb testing.TB, masters int, args ...string) *RedisCluster {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), startMax)
	defer cancel()
	c := &RedisCluster{}
	for i := range 2 * masters {
		// The bus has a port of its own: the usual one, 10000 above, lies among those of outgoing connections.
		bus, err := freePort()
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(bus.release)
		node := RedisForTest(tb, append([]string{
			"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus.number), "--cluster-node-timeout", "2000",
			"--cluster-replica-no-failover", "yes", "--repl-diskless-sync-delay", "0",
		}, args...)...)
		if i < masters {
			c.Masters = append(c.Masters, node)
		} else {
			c.Replicas = append(c.Replicas, node)
		}
	}
	if err := c.join(ctx); err != nil {
		tb.Fatal(err)
	}
	return c
}

func (c *RedisCluster) join(ctx context.Context) error {
	all := append(append([]*Redis{}, c.Masters...), c.Replicas...)
	for i, m := range c.Masters {
		if err := m.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", firstSlot(i, len(c.Masters)), firstSlot(i+1, len(c.Masters))-1); err != nil {
			return err
		}
		// Epochs that differ from the start, so that the nodes need not agree on them.
		if err := m.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1); err != nil {
			return err
		}
	}
	for _, node := range all[1:] {
		host, port, _ := net.SplitHostPort(all[0].Addr)
		bus, err := all[0].config(ctx, "cluster-port")
		if err != nil {
			return err
		}
		if err := node.Do(ctx, "CLUSTER", "MEET", host, port, bus); err != nil {
			return err
		}
	}
	ids := make([]string, len(c.Masters))
	for i, m := range c.Masters {
		id, err := m.ask(ctx, "CLUSTER", "MYID")
		if err != nil {
			return err
		}
		ids[i] = id
	}
	for i, replica := range c.Replicas {
		// Refused until the replica has heard of its master.
		if err := repeat(ctx, func() error { return replica.Do(ctx, "CLUSTER", "REPLICATE", ids[i]) }); err != nil {
			return err
		}
	}
	for _, node := range all {
		err := repeat(ctx, func() error {
			state, err := node.ask(ctx, "CLUSTER", "INFO")
			if err == nil && (!strings.Contains(state, "cluster_state:ok") || !strings.Contains(state, fmt.Sprintf("cluster_known_nodes:%d", len(all)))) {
				err = fmt.Errorf("%s: %s", node.Addr, state)
			}
			if err != nil {
				return err
			}
			known, err := node.ask(ctx, "CLUSTER", "NODES")
			if err == nil && strings.Count(known, "slave") != len(c.Replicas) {
				err = fmt.Errorf("%s does not know every replica: %s", node.Addr, known)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, replica := range c.Replicas {
		if err := replica.Follows(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Promote makes a replica the master of its slots, whatever has become of its master, and returns when it is.
func (r *Redis) Promote(ctx context.Context) error {
	if err := r.Do(ctx, "CLUSTER", "FAILOVER", "TAKEOVER"); err != nil {
		return err
	}
	return repeat(ctx, func() error {
		role, err := r.ask(ctx, "INFO", "replication")
		if err == nil && !strings.Contains(role, "role:master") {
			err = errors.New("it is a replica still")
		}
		return err
	})
}

// Follows waits until the server is a replica whose link to its master is up.
func (r *Redis) Follows(ctx context.Context) error {
	return repeat(ctx, func() error {
		state, err := r.ask(ctx, "INFO", "replication")
		if err == nil && !strings.Contains(state, "master_link_status:up") {
			err = fmt.Errorf("%s does not follow its master: %s", r.Addr, state)
		}
		return err
	})
}

// Do sends one command to this very server, over a connection of its own.
func (r *Redis) Do(ctx context.Context, command ...any) error {
	_, err := r.send(ctx, command...)
	return err
}

// ask is Do for a command that answers with a text.
func (r *Redis) ask(ctx context.Context, command ...any) (string, error) {
	reply, err := r.send(ctx, command...)
	return fmt.Sprint(reply), err
}

func (r *Redis) config(ctx context.Context, name string) (string, error) {
	reply, err := r.send(ctx, "CONFIG", "GET", name)
	if err != nil {
		return "", err
	}
	if pair, ok := reply.([]any); ok && len(pair) == 2 {
		return fmt.Sprint(pair[1]), nil
	}
	return "", fmt.Errorf("CONFIG GET %s at %s gave %v", name, r.Addr, reply)
}

func (r *Redis) send(ctx context.Context, command ...any) (any, error) {
	cl := redis.NewClient(&redis.Options{Addr: r.Addr, Protocol: 2, MaxRetries: -1, DisableIdentity: true, ContextTimeoutEnabled: true})
	defer cl.Close()
	reply, err := cl.Do(ctx, command...).Result()
	if err != nil {
		return nil, fmt.Errorf("%v at %s: %w", command, r.Addr, err)
	}
	return reply, nil
}

// repeat asks until the answer is no error or ctx ends.
func repeat(ctx context.Context, ask func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}
