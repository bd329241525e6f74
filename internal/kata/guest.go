package kata

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

const (
	defaultTimeout = 3 * time.Second
	// maxAnswerBytes is far more than numbers need; a guest may babble.
	maxAnswerBytes = 64 << 10
)

// DefaultShimRoots are the directories in which Kata's shims have their sockets:
// the one in Go, and the one in Rust.
func DefaultShimRoots() []string { return []string{"/run/vc/sbs", "/run/kata"} }

// GuestConfig says how guests are reached.
type GuestConfig struct {
	// ShimRoots are looked in, one after the other, for a directory with the id of
	// the sandbox and the shim's socket in it. None stands for DefaultShimRoots.
	ShimRoots []string
	// KataRuntime is the program kata-runtime, or "" to ask the shim itself.
	KataRuntime string
	// Timeout is for a whole call, whatever it takes; 0 stands for 3 seconds.
	Timeout time.Duration
}

// Guest asks guests about the volumes that they have. Safe for concurrent use.
type Guest struct {
	route   transport
	timeout time.Duration
}

// transport is a way to call a guest. Its answers are not trusted. Errors are ErrUnimplemented or
// ErrNoAnswer.
type transport interface {
	stats(ctx context.Context, e Entry) ([]byte, error)
	resize(ctx context.Context, e Entry, bytes int64) ([]byte, error)
}

// NewGuest returns the way to guests that the configuration says.
func NewGuest(config GuestConfig) *Guest {
	guest := &Guest{route: &shim{roots: config.ShimRoots}, timeout: cmp.Or(config.Timeout, defaultTimeout)}

	switch {
	case config.KataRuntime != "":
		guest.route = &kataRuntime{path: config.KataRuntime}
	case len(config.ShimRoots) == 0:
		guest.route = &shim{roots: DefaultShimRoots()}
	}

	return guest
}

// Stats asks the guest how full the volume's filesystem is. The numbers are the
// guest's: they fit each other, and may be lies still.
//
// Errors: ErrNoSandbox, or ErrNoAnswer, which wraps the context's error when that
// is why.
func (g *Guest) Stats(ctx context.Context, e Entry) (mount.Usage, error) {
	answer, err := g.ask(ctx, e, g.route.stats)
	if err != nil {
		return mount.Usage{}, fmt.Errorf("ask sandbox %q for the usage of %q: %w", e.Sandbox, e.TargetPath, err)
	}

	usage, err := parseStats(answer)
	if err != nil {
		return mount.Usage{}, fmt.Errorf("ask sandbox %q for the usage of %q: %w; it said %s",
			e.Sandbox, e.TargetPath, err, excerpt(answer))
	}

	return usage, nil
}

// Resize asks the guest to grow the volume's filesystem to that many bytes of its device, which has
// them already.
//
// Errors: ErrNoSandbox; ErrUnimplemented where the guest can't; ErrNoAnswer, which
// wraps the context's error when that is why, and after which the guest may have
// done it or not.
func (g *Guest) Resize(ctx context.Context, e Entry, bytes int64) (err error) {
	defer errdefs.Wrapf(&err, "ask sandbox %q to resize %q to %d bytes", e.Sandbox, e.TargetPath, bytes)

	answer, err := g.ask(ctx, e, func(ctx context.Context, e Entry) ([]byte, error) {
		return g.route.resize(ctx, e, bytes)
	})
	if err != nil {
		return err
	}

	return checkResized(answer)
}

func (g *Guest) ask(ctx context.Context, e Entry, how func(context.Context, Entry) ([]byte, error)) ([]byte, error) {
	if e.Sandbox == "" {
		return nil, fmt.Errorf("%w: wait until its pod has started", ErrNoSandbox)
	}

	timed, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()

	answer, err := how(timed, e)

	switch {
	case err == nil:
		return answer, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w", ErrNoAnswer, context.Cause(ctx))
	case timed.Err() != nil:
		return nil, fmt.Errorf("%w within %v: see whether its pod hangs", ErrNoAnswer, g.timeout)
	default:
		return nil, err
	}
}

// checkResized knows that Kata says nothing when it has done it. Its errors may
// come as an answer, too.
func checkResized(answer []byte) error {
	switch text := strings.TrimSpace(string(answer)); {
	case text == "", text == "{}":
		return nil
	case saysUnimplemented(text):
		return fmt.Errorf("%w: it said %s", ErrUnimplemented, excerpt(answer))
	default:
		return fmt.Errorf("%w: it said %s", ErrNoAnswer, excerpt(answer))
	}
}

// saysUnimplemented knows the name of the gRPC code in the spellings of Go and Rust,
// and what agents say that have never heard of the call: they call it NotFound.
func saysUnimplemented(text string) bool {
	text = strings.ToLower(text)

	return slices.ContainsFunc([]string{"unimplemented", "not implemented", "is not supported"},
		func(word string) bool { return strings.Contains(text, word) })
}

// excerpt makes what a guest said fit for a message: one line, and not too long.
func excerpt(said []byte) string {
	const enough = 256

	text := strings.TrimSpace(string(said))
	if len(text) > enough {
		return fmt.Sprintf("%q…", text[:enough])
	}

	return fmt.Sprintf("%q", text)
}
