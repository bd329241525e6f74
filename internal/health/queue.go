package health

import (
	"slices"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// probeQueue has the subjects to probe next, and the state of those that have probes. prober.mu guards it.
type probeQueue struct {
	// TypedInterface does not return a subject whose probe runs, but returns it again afterwards if it was
	// added meanwhile.
	workqueue.TypedInterface[string]

	// rounds are the relists, whose subjects are probed when no other is queued.
	rounds   []*round
	subjects map[string]*subject
}

// round has the probes of one relist, or the one of ProbeNow. prober.mu guards it.
type round struct {
	began time.Time
	// queued are the ids that are not in the queue yet.
	queued []string
	// incomplete counts the ids whose probe is not complete; done is closed at 0.
	incomplete int
	done       chan struct{}
	// unexpected: all sources were connected and lost no event since the previous
	// relist, so an event should have preceded each change.
	unexpected bool
}

// subject returns the state of a subject, a new one for a subject without probes.
func (q *probeQueue) subject(id string) *subject {
	s := q.subjects[id]
	if s == nil {
		s = &subject{id: id}
		q.subjects[id] = s
	}

	return s
}

// addRound has the subjects queued after all others.
func (q *probeQueue) addRound(r *round, ids []string) {
	if len(ids) == 0 {
		close(r.done)

		return
	}

	r.queued, r.incomplete = ids, len(ids)
	q.rounds = append(q.rounds, r)
}

// dropRound dequeues the subjects of a round that are not in the queue yet.
func (q *probeQueue) dropRound(r *round) {
	q.rounds = slices.DeleteFunc(q.rounds, func(each *round) bool { return each == r })
}

// join queues a subject and has the round wait for its next probe, or not wait if the
// running one has timed out.
func (q *probeQueue) join(r *round, id string) {
	s := q.subject(id)
	q.Add(id)

	if s.running != nil && s.running.timedOut {
		complete([]*round{r})
	} else {
		s.waiting = append(s.waiting, r)
	}
}

func complete(rounds []*round) {
	for _, r := range rounds {
		r.incomplete--

		if r.incomplete == 0 {
			close(r.done)
		}
	}
}

// next returns the next subject, which is not returned again before Done, or nil.
func (q *probeQueue) next() *subject {
	q.queueNextOfRounds()

	if q.Len() == 0 {
		return nil
	}

	// Every Get is here, with mu locked, so it does not block.
	id, _ := q.Get()

	return q.subject(id)
}

// queueNextOfRounds queues the next subject of the rounds if nothing else is queued.
func (q *probeQueue) queueNextOfRounds() {
	for q.Len() == 0 && len(q.rounds) > 0 {
		r := q.rounds[0]
		if len(r.queued) == 0 {
			q.rounds = q.rounds[1:]
			continue
		}

		id := r.queued[0]
		r.queued = r.queued[1:]
		q.join(r, id)
	}
}

// end drops what is queued, also behind a probe that runs, and takes no more.
func (q *probeQueue) end() {
	// ShutDown alone keeps what is queued, and Done would queue again what was added during its probe.
	q.ShutDown()
	q.TypedInterface = workqueue.NewTyped[string]()
	q.ShutDown()
}
