// Package ephemeral contains the inline ephemeral volumes of a node (Kubernetes' CSI inline
// volumes): NodePublishVolume creates and mounts them, NodeUnpublishVolume unmounts and removes
// them. A volume is recorded before anything of it exists, and its record is deleted last, so that
// whatever interrupts a call, the next call or start completes the removal.
//
// It uses package access to attach and to mount. Volumes that the controller creates are package
// node's.
package ephemeral
