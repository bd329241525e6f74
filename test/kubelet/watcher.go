package kubelet

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	// waitLimit is no verdict on speed: it only ends a test that would hang.
	waitLimit = time.Minute
	// dialLimit is for a socket to be served after it has come: the two are two
	// system calls.
	dialLimit = 10 * time.Second
	dialPause = 10 * time.Millisecond
	// unread is for events that a test does not read.
	unread = 1024
)

// Kind is what has become of a plugin.
type Kind string

// The kinds of events.
const (
	Registered Kind = "registered"
	Refused    Kind = "refused"
	Gone       Kind = "gone"
)

// Event is one turn in a plugin's life.
type Event struct {
	Kind Kind
	// Socket is the registration's.
	Socket string
	// Info is what the plugin says of itself; nil with Gone.
	Info *registerapi.PluginInfo
}

// Register uses a plugin that has described itself; its error is the
// kubelet's refusal.
type Register func(ctx context.Context, info *registerapi.PluginInfo) error

// Watcher is a running one.
type Watcher struct {
	tb       testing.TB
	register Register
	watcher  *fsnotify.Watcher
	events   chan Event
	known    map[string]bool
	stop     context.CancelFunc
	done     sync.WaitGroup
}

// Watch registers the plugins that are in the directory and those that come, until
// Stop or the end of the test. A nil register refuses none.
func Watch(tb testing.TB, directory string, register Register) *Watcher {
	tb.Helper()

	if register == nil {
		register = func(context.Context, *registerapi.PluginInfo) error { return nil }
	}

	watcher, err := fsnotify.NewWatcher()
	require.NoError(tb, err)
	require.NoError(tb, watcher.Add(directory))

	ctx, stop := context.WithCancel(context.Background())
	w := &Watcher{
		tb: tb, register: register, watcher: watcher, events: make(chan Event, unread), known: map[string]bool{}, stop: stop,
	}
	// After the watch has begun, so that none falls in between.
	there, err := filepath.Glob(filepath.Join(directory, "*"))
	require.NoError(tb, err)

	w.done.Go(func() { w.run(ctx, there) })
	tb.Cleanup(w.Stop)

	return w
}

// Stop ends it, as a kubelet ends: plugins hear nothing of it.
func (w *Watcher) Stop() {
	w.stop()

	_ = w.watcher.Close()

	w.done.Wait()
}

// Next waits for the next event, which has to be of the kind.
func (w *Watcher) Next(kind Kind) Event {
	w.tb.Helper()

	select {
	case event := <-w.events:
		require.Equal(w.tb, kind, event.Kind, event.Socket)

		return event
	case <-time.After(waitLimit):
		require.Fail(w.tb, "no plugin is "+string(kind))

		return Event{}
	}
}

// Await waits for an event of the kind, whatever comes before it.
func (w *Watcher) Await(kind Kind) Event {
	w.tb.Helper()

	late := time.After(waitLimit)

	for {
		select {
		case event := <-w.events:
			if event.Kind == kind {
				return event
			}
		case <-late:
			require.Fail(w.tb, "no plugin is "+string(kind))
		}
	}
}

// Quiet says that nothing has happened that was not asked for.
func (w *Watcher) Quiet() bool { return len(w.events) == 0 }

func (w *Watcher) run(ctx context.Context, there []string) {
	for _, path := range there {
		w.come(ctx, path)
	}

	for {
		select {
		case event, open := <-w.watcher.Events:
			if !open {
				return
			}

			switch {
			case event.Has(fsnotify.Create):
				w.come(ctx, event.Name)
			case event.Has(fsnotify.Remove), event.Has(fsnotify.Rename):
				w.leave(event.Name)
			}
		case err := <-w.watcher.Errors:
			if err != nil {
				w.tb.Errorf("watch the plugins: %v", err)
			}
		}
	}
}

func (w *Watcher) leave(path string) {
	if w.known[path] {
		delete(w.known, path)

		w.events <- Event{Kind: Gone, Socket: path}
	}
}

func (w *Watcher) come(ctx context.Context, path string) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return
	}

	event, err := w.talk(ctx, path)
	if err != nil {
		w.tb.Logf("the plugin does not answer: %v", err) // it may have gone meanwhile

		return
	}

	w.known[path] = true
	w.events <- event
}

func (w *Watcher) talk(ctx context.Context, path string) (Event, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()

	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: dialPause, MaxDelay: dialPause},
			// Without it an attempt ends after dialPause: a loaded machine answers later, to each attempt.
			MinConnectTimeout: dialLimit,
		}))
	if err != nil {
		return Event{}, fmt.Errorf("dial: %w", err)
	}
	defer conn.Close()

	client := registerapi.NewRegistrationClient(conn)

	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return Event{}, fmt.Errorf("GetInfo: %w", err)
	}

	event := Event{Kind: Registered, Socket: path, Info: info}
	told := &registerapi.RegistrationStatus{PluginRegistered: true}

	if err := w.register(ctx, info); err != nil {
		event.Kind = Refused
		told = &registerapi.RegistrationStatus{Error: err.Error()}
	}

	if _, err := client.NotifyRegistrationStatus(ctx, told); err != nil {
		return Event{}, fmt.Errorf("NotifyRegistrationStatus: %w", err)
	}

	return event, nil
}
