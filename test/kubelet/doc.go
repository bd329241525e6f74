// Package kubelet stands in for the part of a kubelet that learns of plugins: it
// watches their directory, asks each new socket for its plugin, notifies the plugin
// whether it is registered, and removes it when the socket is removed.
//
// It contains what a kubelet does with a plugin's registration. Like kubelets
// of before it does not try again by itself what was refused. What registering
// takes is the test's.
package kubelet
