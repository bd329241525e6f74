package cgroup

import "github.com/touchstone-csi/touchstone/internal/errdefs"

// Errors of this package.
var (
	// ErrUnsupported is returned where the kernel or its configuration cannot limit block
	// devices; the message names what is missing.
	ErrUnsupported = errdefs.New(errdefs.ErrFailedPrecondition, "not possible on this machine")
	// ErrNoPod is returned where the pod has no cgroup.
	ErrNoPod = errdefs.New(errdefs.ErrFailedPrecondition, "the pod has no cgroup")
)
