// Package manifests renders deploy/helm as Helm does, builds deploy/kustomize as
// kubectl does, and says what is in them: what tests need to know that both are
// the same, that Kubernetes takes them, and that they meet their own rules.
//
// It is a module of its own, so that the driver's does not depend on Helm and
// kustomize. It reads manifests, and needs no cluster.
package manifests
