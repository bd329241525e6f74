// Package identity is the CSI Identity service: who the plugin is, what it can
// do, and whether it is well.
//
// What may enter: the answers of the three Identity calls and the one check
// behind Probe. What is checked comes from outside as a function.
package identity
