// Package publishing tests NodePublishVolume and what is at a target path: access modes,
// read-only publications, groups, SELinux contexts, flags that a pod's author chose, and
// mounts, files and devices that were changed behind the driver.
package publishing
