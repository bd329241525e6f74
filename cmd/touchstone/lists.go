package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// strictList is the value of a repeatable flag that refuses several lines: pflag would take the first
// one only.
type strictList struct {
	pflag.Value
	pflag.SliceValue
}

// Set implements pflag.Value.
func (l strictList) Set(text string) error {
	if strings.ContainsAny(strings.TrimRight(text, "\r\n"), "\r\n") {
		return fmt.Errorf("%w: several lines; separate the values by commas", errUsage)
	}

	return l.Value.Set(text)
}

// restrictLists makes all repeatable flags strict.
func restrictLists(flags *pflag.FlagSet) {
	flags.VisitAll(func(flag *pflag.Flag) {
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			flag.Value = strictList{flag.Value, list}
		}

		if flag.DefValue == "[]" {
			flag.DefValue = ""
		}
	})
}
