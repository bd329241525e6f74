// Package taint removes a startup taint from the Kubernetes object of the node: an administrator
// gives it to new nodes, so that no pod is there before the driver.
package taint
