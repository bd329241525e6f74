// Package claim asks the Kubernetes API about PersistentVolumeClaims: what their
// owner has written on them, of which no CSI call tells.
//
// What may enter: reading claims. The client of the Kubernetes API is here and
// nowhere else, and so are credentials: only a process with the controller in it
// may have one. It asks for a claim's metadata alone, with the client that knows
// of no other type: the one with all of them would double the driver's size. What
// an answer means for a volume is decided by pkg/controller.
package claim
