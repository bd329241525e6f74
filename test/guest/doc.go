// Package guest stands in for what has Kata's guests on a host: a shim behind its
// socket, and the program kata-runtime. There is no guest: what they say of a
// volume is what a test lets them say, and what they are asked is written down.
//
// What may enter: how they answer, well or badly. Nothing here knows the driver, or
// looks at a device.
package guest
