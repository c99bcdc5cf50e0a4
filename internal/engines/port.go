package engines

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Free ports are taken from below the kernel's range for outgoing connections (32768 and up), so that no client's
// socket sits on one by chance, not even while an engine is down between Kill and Restart.
const (
	portLow  = 20000
	portHigh = 32000
)

// port is a port number that belongs to this process until release: other processes that use this package cannot
// take it, not even while the engine is down.
type port struct {
	number int
	lock   *os.File
}

func (p *port) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.number)) }

// release gives the port back. Safe twice and on nil.
func (p *port) release() {
	if p != nil && p.lock != nil {
		p.lock.Close() // Which ends the lock, too.
		p.lock = nil
	}
}

var errPortTaken = errors.New("port is taken")

// takePort takes the port or fails.
func takePort(number int) (*port, error) {
	dir := filepath.Join(os.TempDir(), "kanjo-ports")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("take port %d: %w", number, err)
	}
	_ = os.Chmod(dir, 0o1777) // For other users of the machine; only the owner can.
	lock, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(number)), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, fmt.Errorf("take port %d: %w", number, err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("take port %d: %w by another engine", number, errPortTaken)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(number)))
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("take port %d: %w: %w", number, errPortTaken, err)
	}
	listener.Close()
	return &port{number: number, lock: lock}, nil
}

// freePort takes any free port.
func freePort() (*port, error) {
	for range 200 {
		p, err := takePort(portLow + rand.IntN(portHigh-portLow))
		if err == nil {
			return p, nil
		}
		if !errors.Is(err, errPortTaken) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("no free port between %d and %d", portLow, portHigh)
}

// takePorts takes count ports, the wanted one (0: any) first.
func takePorts(wanted, count int) ([]*port, error) {
	var ports []*port
	for len(ports) < count {
		take := freePort
		if len(ports) == 0 && wanted != 0 {
			take = func() (*port, error) { return takePort(wanted) }
		}
		p, err := take()
		if err != nil {
			for _, p := range ports {
				p.release()
			}
			return nil, err
		}
		ports = append(ports, p)
	}
	return ports, nil
}
