package kernelevents

// ParseTraceLine is for the table of lines that no healthy machine writes.
var ParseTraceLine = parseTraceLine
