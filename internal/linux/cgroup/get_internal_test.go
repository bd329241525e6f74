package cgroup

// Get returns the pod's limits for the device. Errors: ErrUnsupported, ErrNoPod.
func (l *Limiter) Get(podUID string, device Device) (Limits, error) {
	tree, top, err := l.find(podUID)
	if err != nil {
		return Limits{}, err
	}

	return tree.get(top, device)
}
