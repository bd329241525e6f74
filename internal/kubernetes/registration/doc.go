// Package registration announces the driver to the kubelet of its node, as the
// node-driver-registrar does from a container of its own: a socket in the kubelet's
// plugin directory, on which the kubelet asks what is there (GetInfo) and tells
// what became of it (NotifyRegistrationStatus). The socket is the announcement:
// when it appears the kubelet registers the driver and reads NodeGetInfo anew, when
// it goes the kubelet forgets the driver.
//
// What may enter: the kubelet's plugin registration v1, and what keeps that socket
// where it is. When the driver is ready is pkg/driver's to say.
package registration
