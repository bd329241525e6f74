// Package volume holds the words that the controller and the node share about
// one volume: its id, its backing, the StorageClass parameters it was made
// with, the context that travels from one service to the other, and the
// capability it is used with.
//
// What may enter: plain values and their parsing. Nothing here does I/O, keeps
// state or decides a gRPC code.
package volume
