package cgroup

import "errors"

// Errors of this package.
var (
	// ErrInfeasible says that the kernel, or how it is set up, does not offer
	// what was asked; the message names what is missing.
	ErrInfeasible = errors.New("not possible on this machine")
	// ErrNoPod says that there is no cgroup of that pod.
	ErrNoPod = errors.New("the pod has no cgroup")
)
