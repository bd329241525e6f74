// Package setting has the kinds of values that a driver's settings have.
//
// A Value is bound to a field of the configuration. It parses the text of a flag, of an environment
// variable or of a key of the YAML file into the field, whose value it checks, whichever way that came
// there. It implements pflag.Value, and one that may be repeated pflag.SliceValue.
package setting
