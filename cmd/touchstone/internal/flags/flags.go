// Package flags makes command-line flags of the driver's settings.
package flags

import (
	"slices"

	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/internal/driver"
)

// Define adds a flag for each setting, or for those of the names, and gives config its defaults.
func Define(to *pflag.FlagSet, config *driver.Config, names ...string) {
	*config = driver.Defaults()
	to.SortFlags = false

	for _, each := range driver.Settings(config) {
		if len(names) > 0 && !slices.Contains(names, each.Name) {
			continue
		}

		shorthand := ""
		if len(each.Name) == 1 {
			shorthand = each.Name
		}

		flag := to.VarPF(each.Value, each.Name, shorthand, each.Help())
		if flag.Value.Type() == "bool" {
			flag.NoOptDefVal = "true"
		} else if flag.Name == "strict" {
			flag.NoOptDefVal = "observe"
		}
	}
}
