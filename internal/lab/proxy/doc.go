// Package proxy forwards every gRPC call to another server and returns its response,
// without decoding: messages pass as bytes, of any service, unary or streaming, with
// metadata, deadlines, cancellation and status. It adds one metadata entry with the
// proxy's id, by which a call that returns to the proxy is refused.
package proxy
