package state_test

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

var errCrashed = errors.New("crashed")

// machine is a filesystem in memory that knows what would survive a kill of the
// process and what a loss of power. Each step that changes something is
// counted, and one can be made to be the last.
type machine struct {
	mu    sync.Mutex
	names map[string]*inode
	// durableNames are those on disk, pending what is not there yet, in order.
	durableNames map[string]*inode
	pending      []func(map[string]*inode)

	steps   int
	crashAt int
	crashed bool
	random  *rand.Rand

	// fail, if set, is asked before each step, and before what changes nothing, for example
	// "write state.jsonl".
	fail  func(step string) error
	syncs int
	// opened counts the files that are open.
	opened int
	// beforeSync, if set, is called with the file's name before a sync, while others may write.
	beforeSync func(name string)
}

type inode struct {
	// name is the newest one, without the directory.
	name         string
	now, durable []byte
}

func newMachine(seed uint64) *machine {
	return &machine{
		names: map[string]*inode{}, durableNames: map[string]*inode{},
		random: rand.New(rand.NewPCG(seed, 1)),
	}
}

// load fills the machine with what a directory has.
func (m *machine) load(dir, name, text string) {
	node := &inode{name: name, now: []byte(text), durable: []byte(text)}
	m.names[filepath.Join(dir, name)] = node
	m.durableNames[filepath.Join(dir, name)] = node
}

// ask says whether a step succeeds that changes nothing; the caller holds mu.
func (m *machine) ask(what string) error {
	if m.fail == nil || m.crashed {
		return nil
	}

	return m.fail(what)
}

// step says whether the machine lives on; the caller holds mu.
func (m *machine) step(what string) error {
	if m.crashed {
		return errCrashed
	}

	m.steps++
	if m.steps == m.crashAt {
		m.crashed = true

		return errCrashed
	}

	if m.fail != nil {
		return m.fail(what)
	}

	return nil
}

func (m *machine) rename(change func(map[string]*inode)) {
	change(m.names)
	m.pending = append(m.pending, change)
}

func (m *machine) OpenFile(name string, flag int, _ fs.FileMode) (state.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.crashed {
		return nil, errCrashed
	}

	node := m.names[name]
	if node != nil {
		err := m.ask("open " + node.name)
		if err != nil {
			return nil, err
		}
	} else {
		if flag&os.O_CREATE == 0 {
			return nil, fs.ErrNotExist
		}

		err := m.step("create " + filepath.Base(name))
		if err != nil {
			return nil, err
		}

		node = &inode{name: filepath.Base(name)}
		m.rename(func(names map[string]*inode) { names[name] = node })
	}

	if flag&os.O_TRUNC != 0 {
		node.now = nil
	}

	m.opened++

	return &memFile{machine: m, inode: node}, nil
}

func (m *machine) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	err := m.step("rename " + filepath.Base(from))
	if err != nil {
		return err
	}

	node := m.names[from]
	if node == nil {
		return fs.ErrNotExist
	}

	node.name = filepath.Base(to)
	m.rename(func(names map[string]*inode) {
		delete(names, from)
		names[to] = node
	})

	return nil
}

func (m *machine) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.names[name] == nil {
		return fs.ErrNotExist
	}

	err := m.step("remove " + filepath.Base(name))
	if err != nil {
		return err
	}

	m.rename(func(names map[string]*inode) { delete(names, name) })

	return nil
}

func (m *machine) SyncDir(string) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	err := m.step("sync directory")
	if err != nil {
		return err
	}

	m.applyNames(len(m.pending))

	return nil
}

func (m *machine) applyNames(count int) {
	for _, change := range m.pending[:count] {
		change(m.durableNames)
	}

	m.pending = m.pending[count:]
}

// afterKill is what the next process finds when this one was killed.
func (m *machine) afterKill() *machine {
	next := newMachine(m.random.Uint64())
	next.names, next.durableNames, next.pending = m.names, m.durableNames, m.pending

	return next
}

// afterPowerCut is what the next process finds when power was lost: of what was
// not synced some sectors and some of the names, these in order.
func (m *machine) afterPowerCut() *machine {
	next := newMachine(m.random.Uint64())

	if len(m.pending) > 0 {
		m.applyNames(m.random.IntN(len(m.pending) + 1))
	}

	for name, node := range m.durableNames {
		survived := &inode{name: filepath.Base(name), now: m.survivors(node)}
		survived.durable = append([]byte{}, survived.now...)
		next.names[name] = survived
		next.durableNames[name] = survived
	}

	return next
}

func (m *machine) survivors(node *inode) []byte {
	const sector = 512

	content := append([]byte{}, node.durable...)
	if len(node.now) < len(content) && m.random.IntN(2) == 0 {
		content = content[:len(node.now)]
	}

	for start := 0; start < len(node.now); start += sector {
		if m.random.IntN(2) == 0 {
			continue
		}

		end := min(start+sector, len(node.now))
		if end > len(content) {
			content = append(content, make([]byte, end-len(content))...)
		}

		copy(content[start:end], node.now[start:end])
	}

	return content
}

type memFile struct {
	*machine
	*inode
}

func (f *memFile) ReadAt(to []byte, offset int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()

	err := f.ask("read " + f.name)
	if err != nil {
		return 0, err
	}

	if offset >= int64(len(f.now)) {
		return 0, io.EOF
	}

	n := copy(to, f.now[offset:])
	if n < len(to) {
		return n, io.EOF
	}

	return n, nil
}

func (f *memFile) WriteAt(data []byte, offset int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()

	dead := f.crashed
	err := f.step("write " + f.name)

	if err != nil && !dead {
		// A write that fails may have done a part of its work.
		data = data[:f.random.IntN(len(data)+1)]
	} else if err != nil {
		return 0, err
	}

	if end := int(offset) + len(data); end > len(f.now) {
		f.now = append(f.now, make([]byte, end-len(f.now))...)
	}

	return copy(f.now[offset:], data), err
}

func (f *memFile) Sync() error {
	f.mu.Lock()
	name := f.name
	f.mu.Unlock()

	if f.beforeSync != nil {
		f.beforeSync(name)
	}

	f.mu.Lock()
	defer f.mu.Unlock()

	err := f.step("sync " + f.name)
	if err != nil {
		return err
	}

	f.syncs++
	f.durable = append(f.durable[:0], f.now...)

	return nil
}

func (f *memFile) Truncate(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()

	err := f.step("truncate " + f.name)
	if err != nil {
		return err
	}

	f.now = append([]byte{}, f.now[:size]...)

	return nil
}

func (f *memFile) Forget() error { return f.asked("forget") }

func (f *memFile) Close() error {
	f.mu.Lock()
	f.opened--
	f.mu.Unlock()

	return f.asked("close")
}

func (f *memFile) asked(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()

	return f.ask(what + " " + f.name)
}
