// Package coalesce turns requests that come shortly after one another, for the
// same thing, into one change.
//
// The first request of a key opens a window. What comes while it is open is
// merged into one request, which is carried out once when the window closes;
// everybody gets the one result. A request that contradicts the others is
// refused and is no part of the change. A caller whose context ends leaves, and
// takes nothing with it: the change is made for the others, and for its own
// retry.
//
// What may enter: which requests become one, and when. Nothing here knows what
// a request says, and no gRPC code is decided here.
package coalesce
