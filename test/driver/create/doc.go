// Package create tests CreateVolume, its names, sizes and parameters, and ListVolumes.
package create
