package events

// What is parsed, for the tables of what no healthy machine says.
var (
	ParseTraceLine       = parseTraceLine
	TakeFilesystemErrors = takeFilesystemErrors
	ParseUevent          = parseUevent
)
