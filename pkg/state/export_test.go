package state

// SetJournalChunk changes the unit in which journals are preallocated, for all of the process.
func SetJournalChunk(bytes int64) { journalChunk = bytes }
