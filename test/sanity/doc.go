// Package sanity_test runs the upstream csi-sanity suite against the driver,
// once for each kind of volume that it treats differently, with controller and
// node in processes of their own (the controller also without any privilege),
// through a proxy, and without capabilities that change a volume's lifecycle.
package sanity_test
