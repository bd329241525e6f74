package main

// equivalent are mutants of the operators that change no behaviour which a user or a caller can
// observe, by name, with the reason. They are not drawn.
var equivalent = map[string]string{}
