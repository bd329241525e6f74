package served

import (
	"crypto/rand"
	"fmt"
)

// Address returns an address of this machine's loopback, as host:port, that is not
// in use. It is one of 16 million hosts: a port that was free a moment ago may be
// another's when it is needed.
func Address() string {
	var host [3]byte

	_, _ = rand.Read(host[:])

	// The first and the last host of 127.0.0.0/8 are no hosts, and 127.0.0.1 is everybody's.
	return fmt.Sprintf("127.%d.%d.%d:9808", 1+host[0]%254, host[1], host[2])
}
