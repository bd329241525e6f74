package embedded

import "errors"

var (
	// ErrForeign is returned where something stands in the way that is not the
	// embedded pool's: it is left alone.
	ErrForeign = errors.New("it is not the embedded pool's")
	// ErrDamaged is returned for an image whose filesystem a person has to repair.
	ErrDamaged = errors.New("the embedded pool's filesystem is damaged")
	// ErrPrivilege is returned where the image has to be made or mounted and this
	// process may not.
	ErrPrivilege = errors.New("mounting it needs root (CAP_SYS_ADMIN)")
	// ErrHostFull is returned where the filesystem that carries the image has no
	// space for the writes to it.
	ErrHostFull = errors.New("the filesystem that carries the embedded pool is full")
	// ErrNotMounted is returned to a reader of a pool whose image no driver has
	// mounted.
	ErrNotMounted = errors.New("the embedded pool is not mounted")
	// ErrBusy is returned for a filesystem that has to be mounted afresh while
	// volumes in it are in use.
	ErrBusy = errors.New("volumes in it are in use")
)
