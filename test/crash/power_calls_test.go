package crash_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestPowerFailureAfterEachCall has the power fail when a call of a lifecycle has just returned, and loses
// all that was not flushed by then: each call is durable as far as it has to be.
func TestPowerFailureAfterEachCall(t *testing.T) {
	namespace.NeedRoot(t)

	built, points := build(t), int(number(t, "points"))
	types := []string{filesystem.Ext4, filesystem.XFS, filesystem.Btrfs}

	for _, fsType := range types {
		t.Run(fsType, func(t *testing.T) {
			s := newScenario(t, built, 1)
			s.site.limits, s.site.disk = fsType == filesystem.Btrfs, temporaryDirectory(t)
			r := record(t, s, fsType, func(p *process) {
				for _, kind := range kinds() {
					s.workers[0].live(p, kind)
				}
			})
			calls, random := slices.Clone(r.history.calls), rand.New(chacha(1, 0))
			random.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
			calls = calls[:min(len(calls), max(1, points/len(types)))]
			slices.SortFunc(calls, func(a, b *call) int { return cmp.Compare(a.acknowledged, b.acknowledged) })

			for _, each := range calls {
				t.Run(each.volume.name+", "+each.name, func(t *testing.T) {
					r.after(t, failure{point: each.acknowledged, keep: keepNone}, random, false)
				})
			}
		})
	}
}

// live takes volumes of a kind through their lifecycle, one of which is only attached.
func (w *worker) live(p *process, kind kind) {
	attached := newVolume(w.site, w.source, "attached "+kind.name)
	attached.kind = kind
	w.volumes = append(w.volumes, attached)
	w.do(p, attached, attached.create())
	w.do(p, attached, attached.attach())
	w.do(p, attached, attached.detach())

	used := newVolume(w.site, w.source, "used "+kind.name)
	used.kind = kind
	w.volumes = append(w.volumes, used)
	w.walk(p, used, used.up)
	w.do(p, used, used.write())
	w.walk(p, used, used.down)
}

// TestRemovalIsDurableBeforeItsRecordIsForgotten has the power fail after deletions and a later
// change of the state, which makes all records before it durable: what was deleted must not be
// back without a record.
func TestRemovalIsDurableBeforeItsRecordIsForgotten(t *testing.T) {
	namespace.NeedRoot(t)

	built := build(t)

	for _, fsType := range []string{filesystem.Ext4, filesystem.XFS, filesystem.Btrfs} {
		t.Run(fsType, func(t *testing.T) {
			s := newScenario(t, built, 1)
			s.site.disk = temporaryDirectory(t)
			r := record(t, s, fsType, func(p *process) {
				// Durable, then deleted, with the record of the deletion forgotten.
				w := s.workers[0]
				all := kinds()

				for _, kind := range []kind{all[0], all[len(all)-1]} {
					v := newVolume(s.site, w.source, "deleted "+kind.name)
					v.kind = kind
					w.volumes = append(w.volumes, v)
					w.walk(p, v, v.up)
					w.do(p, v, v.write())
					w.walk(p, v, v.down)
				}

				// The lazy changes of the state become durable with this one, at the latest.
				time.Sleep(lazyFlush)

				v := newVolume(s.site, w.source, "later")
				v.kind = all[0]
				w.volumes = append(w.volumes, v)
				w.do(p, v, v.create())
			})

			t.Run("replay", func(t *testing.T) {
				r.after(t, failure{point: r.end, keep: keepNone}, rand.New(chacha(1, 0)), true)
			})
		})
	}
}
