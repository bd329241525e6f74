package kata

// TemporaryPrefix begins the name of what a writer has not put in place yet.
const TemporaryPrefix = temporaryPrefix

// ParseStats is what reads a guest's answer.
var ParseStats = parseStats

// ParseMountInfo is what reads an assignment, anybody's.
var ParseMountInfo = parseMountInfo

// EntryName and TargetOf are the way from a target path to its entry, and back.
var (
	EntryName = entryName
	TargetOf  = targetPathOf
)
