package volume

// Registered is what the record of a controller has of a volume that exists.
type Registered struct {
	Pool          string
	Backing       Backing
	CapacityBytes int64
}
