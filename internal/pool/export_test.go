package pool

// Abandon releases what a killed process releases: its locks and descriptors.
func (g *GroupCopy) Abandon() {
	_ = g.lock.Close()
	_ = g.root.Close()
	g.lock, g.root = nil, nil
}
