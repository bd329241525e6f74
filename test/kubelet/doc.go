// Package kubelet stands in for the part of a kubelet that learns of plugins: it
// watches their directory, asks each socket that comes what it is, tells it
// whether it is registered, and forgets it when the socket goes.
//
// What may enter: what a kubelet does with a plugin's registration. Like kubelets
// of before it does not try again by itself what was refused. What registering
// takes is the test's.
package kubelet
