package cgroup

import "github.com/touchstone-csi/touchstone/internal/errdefs"

// Errors of this package.
var (
	// ErrUnsupported says that the kernel, or how it is set up, does not offer
	// what was asked; the message names what is missing.
	ErrUnsupported = errdefs.New(errdefs.ErrFailedPrecondition, "not possible on this machine")
	// ErrNoPod says that there is no cgroup of that pod.
	ErrNoPod = errdefs.New(errdefs.ErrFailedPrecondition, "the pod has no cgroup")
)
