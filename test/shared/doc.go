// Package shared_test runs one controller and two nodes over one pool, as
// processes of their own, the nodes in mount namespaces of their own: what
// several machines do that mount one filesystem.
package shared_test
