package faults

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
)

// Credentials returns the credentials of a server without TLS, by which rules reach the connection of
// a call.
func Credentials() credentials.TransportCredentials {
	return connectionCredentials{insecure.NewCredentials()}
}

type connectionCredentials struct {
	credentials.TransportCredentials
}

// connectionInfo has the connection of a call.
type connectionInfo struct {
	credentials.AuthInfo

	connection net.Conn
}

// ServerHandshake implements credentials.TransportCredentials.
func (c connectionCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	made, info, err := c.TransportCredentials.ServerHandshake(raw)

	return made, connectionInfo{info, made}, err
}

// Clone implements credentials.TransportCredentials.
func (c connectionCredentials) Clone() credentials.TransportCredentials {
	return connectionCredentials{c.TransportCredentials.Clone()}
}

// connectionOf returns the connection of a call, nil if the server has other credentials.
func connectionOf(ctx context.Context) net.Conn {
	caller, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}

	info, _ := caller.AuthInfo.(connectionInfo)

	return info.connection
}
