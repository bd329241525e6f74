package node

// Serves reports whether nodeID is the ID of this node.
func (s *Service) Serves(nodeID string) bool { return nodeID == s.config.NodeID }
