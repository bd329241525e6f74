package kata

// TemporaryName returns the name under which the assignment of an entry is written.
var TemporaryName = temporaryName

// ParseStats is what reads a guest's answer.
var ParseStats = parseStats

// ParseMountInfo parses an assignment, which may be another program's.
var ParseMountInfo = parseMountInfo

// EntryName and TargetOf are the way from a target path to its entry, and back.
var (
	EntryName = entryName
	TargetOf  = targetPathOf
)
