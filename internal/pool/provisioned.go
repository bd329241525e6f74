package pool

import "sync"

// Provisioned has the provisioned bytes of each pool, for a Ledger. The zero value is empty. It is safe
// for concurrent use.
type Provisioned struct {
	mu     sync.Mutex
	byPool map[string]int64
}

// Add adds bytes, which may be negative, to a pool's sum.
func (p *Provisioned) Add(pool string, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.byPool == nil {
		p.byPool = map[string]int64{}
	}

	p.byPool[pool] += bytes
}

// Bytes returns a pool's sum.
func (p *Provisioned) Bytes(pool string) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.byPool[pool]
}
