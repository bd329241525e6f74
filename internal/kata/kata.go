package kata

import "cmp"

// Config says how volumes are assigned to VM-based runtimes.
type Config struct {
	// Root is the directory in which the runtimes expect assignments; empty is DefaultRoot.
	Root  string
	Guest GuestConfig
	// HostPaths are translations of the driver's paths to those of the host, as FROM=TO.
	HostPaths []string
}

// Runtimes reaches the VM-based runtimes of the machine.
type Runtimes struct {
	// Root has the assignments.
	Root *Root
	// Guest sends requests to guests.
	Guest *Guest
	// HostPaths translate the driver's paths to those of the host, which the runtimes use.
	HostPaths HostPaths
}

// New returns the runtimes that the configuration says. Error: ErrHostPath.
func New(config Config) (Runtimes, error) {
	paths, err := ParseHostPaths(config.HostPaths)

	return Runtimes{
		Root: NewRoot(cmp.Or(config.Root, DefaultRoot)), Guest: NewGuest(config.Guest), HostPaths: paths,
	}, err
}
