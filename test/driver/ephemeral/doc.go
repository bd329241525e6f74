// Package ephemeral tests inline ephemeral volumes, which only the node serves: they are
// created by NodePublishVolume and deleted by NodeUnpublishVolume.
package ephemeral
