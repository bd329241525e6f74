// Package modes tests how the driver's processes are divided: controller and node apart, a
// proxy before them, a second controller on a pool, and the registration with the kubelet.
package modes
