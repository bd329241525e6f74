// Package claim reads annotations of PersistentVolumeClaims from the Kubernetes API,
// because CSI calls do not contain them.
//
// With package taint it is the only one with a client of the Kubernetes API and credentials; only a
// process with a controller uses it. It requests a claim's metadata only, with
// client-go's metadata client: the typed client would double the binary's size.
package claim
