// Package health knows which volumes are not well, since when, and why.
//
// A Monitor keeps the newest condition of each of its subjects. It learns of
// trouble from sources, which tell that something has happened, and from
// relists, which look at everything now and then; what is the matter it learns
// from one place only, the probe. RPCs answer from what is kept, so that a sick
// volume delays nobody who asks. The design is that of Kubernetes' evented PLEG
// (KEP-3386), for volumes instead of pods.
//
// What may enter: the words for conditions (the reasons are an API), what is kept
// of them, when to look again, and how a condition is told in both dialects of
// the spec, in metrics, and to people. How a volume is looked at is known to
// whoever gives the probe, and what the kernel tells is pkg/health/events'.
package health
