package child

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// BuildDriver builds the driver at path, with the flags of `make build`, so that all builds of it use the
// same packages of the cache. If TOUCHSTONE_BINARY names one that is built already, path is a link to it.
func BuildDriver(path string) error {
	if given := os.Getenv("TOUCHSTONE_BINARY"); given != "" {
		return os.Symlink(given, path)
	}

	ctx, cancel := context.WithTimeout(context.Background(), BuildLimit)
	defer cancel()

	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, "github.com/touchstone-csi/touchstone/cmd/touchstone")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")

	output, err := build.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", build, err, output)
	}

	return nil
}
