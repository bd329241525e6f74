// Package hostpath gives a driver the dialect of csi-driver-host-path's hostpathplugin: what a CO
// that was written for that program sends and expects, where Touchstone's own differs. The
// dialect consists of two interceptors; the driver behind them knows nothing about it.
package hostpath
