// Package rpc is what the services do alike at their edge: it checks the ids of
// requests, starts or joins the operation, and turns the errors of the rooms
// below into the gRPC status that the CSI spec asks for.
//
// What may enter: what every service needs, once. What a request means is
// decided by the services.
package rpc
