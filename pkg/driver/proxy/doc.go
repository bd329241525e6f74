// Package proxy hands every gRPC call on to a server elsewhere, and its answer
// back, without a look inside: messages pass as the bytes that they are, of
// whatever service, unary or streaming, with their metadata, deadlines,
// cancellation and status. The one thing added is a metadata entry with the proxy's
// id, by which a call that comes back is refused.
//
// What may enter: what passes calls on. Who listens, and where, is the
// driver's.
package proxy
