package counters

import (
	"net"
	"sync"
	"testing"
)

// proxy stands between a client and Redis. It can cut connections, refuse new ones, and lose answers: a deaf proxy lets
// requests through and hangs up when Redis answers.
type proxy struct {
	addr string
	l    net.Listener
	wg   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	down  bool // refuses connections
	deaf  bool // drops what the server answers
	mute  bool // drops what the clients ask
}

func newProxy(tb testing.TB, to string) *proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), l: l, conns: map[net.Conn]bool{}}
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			down := p.down
			p.mu.Unlock()
			up, err := net.Dial("tcp", to)
			if err != nil || down {
				c.Close()
				if up != nil {
					up.Close()
				}
				continue
			}
			p.mu.Lock()
			p.conns[c], p.conns[up] = true, true
			p.mu.Unlock()
			p.wg.Go(func() {
				defer p.close(c, up)
				buf := make([]byte, 32<<10)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					p.mu.Lock()
					mute := p.mute
					p.mu.Unlock()
					if mute {
						continue
					}
					if _, err := up.Write(buf[:n]); err != nil {
						return
					}
				}
			})
			p.wg.Go(func() {
				defer p.close(c, up)
				buf := make([]byte, 32<<10)
				for {
					n, err := up.Read(buf)
					p.mu.Lock()
					deaf := p.deaf
					p.mu.Unlock()
					if err != nil || deaf {
						return // the request was carried out and its answer is lost
					}
					if _, err := c.Write(buf[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	tb.Cleanup(func() {
		l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) close(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		c.Close()
		delete(p.conns, c)
	}
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

func (p *proxy) setMute(mute bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = mute
}

func (p *proxy) set(down, deaf bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down, p.deaf = down, deaf
}
