// Package staged holds the node's durable records: of staged volumes and their
// publications, and the collection that all of the node's records are kept in.
//
// A record states the request of the CO and is written before the node acts on it. It
// does not state what is mounted or attached now: that is observed (package observe).
//
// It contains record types and their storage. It does not mount, attach or observe
// anything, and it imports no service.
package staged
