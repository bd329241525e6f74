package calls

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
)

// DefaultMaxCalls and DefaultMaxBytes bound the memory of a recorder. A lifecycle of a volume
// has about ten calls of half a kilobyte.
const (
	DefaultMaxCalls = 10000
	DefaultMaxBytes = 16 << 20
)

// Config is what a recorder needs to know.
type Config struct {
	// File gets a line for each call; without one, calls are only kept in memory.
	File string
	// KeepSecrets leaves credentials in requests, responses and metadata.
	KeepSecrets bool
	// MaxCalls and MaxBytes bound what is kept in memory; 0 are the defaults.
	MaxCalls, MaxBytes int
	// Number returns the number of a call in the driver's log, for the interceptors.
	Number func(context.Context) uint64
	Log    *slog.Logger
}

// Recorder keeps the last calls in memory, in the order in which they ended. It is safe for
// concurrent use.
type Recorder struct {
	config Config
	file   *file

	mu   sync.Mutex
	kept []stored
	// first is the position of kept[0], counted from the recorder's begin; Clear does not reset it.
	first  uint64
	bytes  int
	counts map[countKey]uint64
	// changed is closed when a call is added, and replaced.
	changed chan struct{}
	// ended is closed by Drain.
	ended   chan struct{}
	endOnce sync.Once
}

// stored is a call with the size of its encoding.
type stored struct {
	*Call

	size int
}

type countKey struct{ method, code string }

// New opens the file, if there is one. Close closes it.
func New(config Config) (*Recorder, error) {
	config.MaxCalls, config.MaxBytes = cmp.Or(config.MaxCalls, DefaultMaxCalls), cmp.Or(config.MaxBytes, DefaultMaxBytes)
	r := &Recorder{
		config: config, counts: map[countKey]uint64{}, changed: make(chan struct{}), ended: make(chan struct{}),
	}

	if config.File != "" {
		opened, err := openFile(config.File, config.Log)
		if err != nil {
			return nil, err
		}

		r.file = opened
	}

	return r, nil
}

// Drain ends the calls of Follow and Wait.
func (r *Recorder) Drain() { r.endOnce.Do(func() { close(r.ended) }) }

// Close writes what is queued for the file, and closes it.
func (r *Recorder) Close() error {
	r.Drain()

	if r.file == nil {
		return nil
	}

	return r.file.close()
}

// Lost returns how many calls could not be written to the file.
func (r *Recorder) Lost() uint64 {
	if r.file == nil {
		return 0
	}

	return r.file.lost.Load()
}

// add records a call that has ended.
func (r *Recorder) add(call *Call) {
	line, err := json.Marshal(call)
	if err != nil {
		r.config.Log.Error("cannot encode a call for the call log", "number", call.Number, "error", err)

		return
	}

	if r.file != nil {
		r.file.write(append(slices.Clip(line), '\n'))
	}

	// A single call must not replace all others.
	const share = 4

	size := len(line)
	if size > r.config.MaxBytes/share {
		call = call.withoutMessages()
		size = 0
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	r.kept = append(r.kept, stored{call, size})
	r.bytes += size
	r.counts[countKey{call.RPC(), call.Code}]++

	for len(r.kept) > r.config.MaxCalls || r.bytes > r.config.MaxBytes {
		r.bytes -= r.kept[0].size
		r.kept[0] = stored{}
		r.kept = r.kept[1:]
		r.first++
	}

	close(r.changed)
	r.changed = make(chan struct{})
}

// withoutMessages is the call without its request and response, which are counted instead.
func (c *Call) withoutMessages() *Call {
	short := *c
	short.Omitted += len(c.Messages) + 2 // request and response
	short.Request, short.Response, short.Messages = nil, nil, nil

	return &short
}

// from returns the calls at the position and after it, the position after them, how many before
// them are not kept any more, and what is closed when there is another one.
func (r *Recorder) from(position uint64) (found []*Call, next, missed uint64, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()

	next = r.first + uint64(len(r.kept))
	if position < r.first {
		missed, position = r.first-position, r.first
	}

	for _, each := range r.kept[min(position-r.first, uint64(len(r.kept))):] {
		found = append(found, each.Call)
	}

	return found, next, missed, r.changed
}

// end returns the position of the next call.
func (r *Recorder) end() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.first + uint64(len(r.kept))
}

// List returns the kept calls that the filter selects. Errors: ErrFilter, ctx's.
func (r *Recorder) List(ctx context.Context, filter Filter) ([]*Call, error) {
	match, err := newMatcher(filter)
	if err != nil {
		return nil, err
	}

	kept, _, _, _ := r.from(0) //nolint:dogsled // only the calls

	selected, err := match.matching(ctx, kept)
	if err != nil {
		return nil, err
	}

	if err := match.mistake(); err != nil {
		return nil, err
	}

	return selected, nil
}

// Count is how many calls of a method ended with a code.
type Count struct {
	// Method is the RPC's name.
	Method string `json:"method"`
	Code   string `json:"code"`
	Count  uint64 `json:"count"`
}

// Counts counts all calls since the start or the last Clear, also those that are not kept any
// more, by method and code.
func (r *Recorder) Counts() []Count {
	r.mu.Lock()
	defer r.mu.Unlock()

	counts := make([]Count, 0, len(r.counts))
	for key, count := range r.counts {
		counts = append(counts, Count{key.method, key.code, count})
	}

	slices.SortFunc(counts, func(a, b Count) int {
		return cmp.Or(strings.Compare(a.Method, b.Method), strings.Compare(a.Code, b.Code))
	})

	return counts
}

// Clear forgets the calls and their counts. The file keeps its lines.
func (r *Recorder) Clear() {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.first += uint64(len(r.kept))
	r.kept, r.bytes = nil, 0
	clear(r.counts)
}
