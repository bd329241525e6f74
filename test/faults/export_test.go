package faults

// ServeFor is Serve with a parent that is given up sooner.
var ServeFor = serveFor
