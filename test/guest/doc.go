// Package guest stands in for what has Kata's guests on a host: a shim behind its
// socket, and the program kata-runtime. There is no guest: what they say of a
// volume is what a test lets them say, and what they are asked is written down.
//
// It contains their answers, valid and invalid. It does not depend on the driver, and
// accesses no device.
package guest
