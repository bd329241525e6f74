package strict

import (
	"crypto/sha256"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// retryWindow and retryFailures are the bound of retries without backoff: a request that
	// failed retryFailures times within the window is repeated within it. Kubernetes' sidecars
	// begin with a delay of a second and the kubelet with half a second, and both double it: no
	// more than two failures of theirs are within one second.
	retryWindow   = time.Second
	retryFailures = 3
	// maxFailures bounds the failing requests that are known.
	maxFailures = 10000
)

// fingerprint identifies a request without its secrets and tokens.
type fingerprint [sha256.Size]byte

func fingerprintOf(method string, message proto.Message) fingerprint {
	message = proto.Clone(message)
	reflection := message.ProtoReflect()

	if field := reflection.Descriptor().Fields().ByName("secrets"); field != nil {
		reflection.Clear(field)
	}

	if field := reflection.Descriptor().Fields().ByName("volume_context"); field != nil && field.IsMap() && reflection.Has(field) {
		entries := reflection.Mutable(field).Map()
		entries.Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
			if addedByCO(key.String()) {
				entries.Clear(key)
			}

			return true
		})
	}

	// A message that cannot be encoded has a fingerprint of its method alone.
	encoded, _ := proto.MarshalOptions{Deterministic: true}.Marshal(message)

	return sha256.Sum256(append([]byte(method+"\x00"), encoded...))
}

// failure has the times at which a request failed, the last retryFailures of them.
type failure struct{ times []time.Time }

// failures are the requests that have failed lately.
type failures struct {
	now      func() time.Time
	byDigest map[fingerprint]*failure
}

func (f *failures) check(c *call) []finding {
	known := f.byDigest[c.digest]
	if known == nil || len(known.times) < retryFailures || f.now().Sub(known.times[0]) > retryWindow {
		return nil
	}

	return []finding{{retryWithoutBackoff, objectOf(c.request), "the request failed three times within the last second"}}
}

// add records that a request failed. A CO polls Probe until the plugin is ready; that is no retry.
func (f *failures) add(c *call) {
	if c.rpc() == "Probe" {
		return
	}

	now := f.now()

	known := f.byDigest[c.digest]
	if known == nil {
		if len(f.byDigest) >= maxFailures {
			f.forget(now)
		}

		known = &failure{}
		f.byDigest[c.digest] = known
	}

	if len(known.times) == retryFailures {
		known.times = known.times[1:]
	}

	known.times = append(known.times, now)
}

// forget forgets those outside of the window, or all.
func (f *failures) forget(now time.Time) {
	for digest, known := range f.byDigest {
		if now.Sub(known.times[len(known.times)-1]) > retryWindow {
			delete(f.byDigest, digest)
		}
	}

	if len(f.byDigest) >= maxFailures {
		clear(f.byDigest)
	}
}
