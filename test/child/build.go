package child

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// BuildEnv is this process's environment with the settings of the Makefile, for a go command to use the packages
// that others have compiled.
func BuildEnv() []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="+os.Getenv("GOFLAGS")+" -trimpath")
}

// Go is a go command in a directory, whose module is used without a workspace. It ends with the test.
func Go(tb testing.TB, directory string, args ...string) *exec.Cmd {
	tb.Helper()

	command := CommandWithin(tb, BuildLimit, "go", args...)
	command.Dir, command.Env = directory, append(BuildEnv(), "GOWORK=off")

	return command
}

// BuildDriver builds the driver at path, with build tags. If TOUCHSTONE_BINARY names one that is built already,
// path is a link to it, or to the one beside it whose name ends with the tags: touchstone-nolab.
func BuildDriver(path string, tags ...string) error {
	if given := os.Getenv("TOUCHSTONE_BINARY"); given != "" {
		return os.Symlink(strings.Join(append([]string{given}, tags...), "-"), path)
	}

	ctx, cancel := context.WithTimeout(context.Background(), BuildLimit)
	defer cancel()

	// Unlike go build, go run keeps the program in the cache: it is linked once for all packages.
	build := exec.CommandContext(ctx, "go", "run", "-tags="+strings.Join(tags, ","), "-exec=cp",
		"github.com/touchstone-csi/touchstone/cmd/touchstone", path)
	build.Env = BuildEnv()

	output, err := build.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", build, err, output)
	}

	return nil
}
