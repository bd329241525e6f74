// Package registration registers the driver with the kubelet of its node, as the
// node-driver-registrar does from a separate container: by a socket in the kubelet's
// plugin directory, on which the kubelet calls GetInfo and NotifyRegistrationStatus
// (plugin registration v1). When the socket appears, the kubelet registers the driver
// and calls NodeGetInfo again; when it is removed, the kubelet removes the driver.
package registration
