package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// module is what the module's packages begin with.
const module = "github.com/touchstone-csi/touchstone/"

// listed is a package as go list describes it.
type listed struct {
	ImportPath   string   `json:"ImportPath"`
	GoFiles      []string `json:"GoFiles"`
	TestGoFiles  []string `json:"TestGoFiles"`
	XTestGoFiles []string `json:"XTestGoFiles"`
}

// operatorMutants returns all mutants of the operators, in the order of packages and files, with
// the tests that should fail: all of the package, and of the nearest packages of test/driver.
func operatorMutants(ctx context.Context, root string) ([]mutant, error) {
	command := exec.CommandContext(ctx, "go", "list", "-json=ImportPath,GoFiles,TestGoFiles,XTestGoFiles", "./cmd/...", "./pkg/...", "./internal/...")
	command.Dir = root

	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w", err)
	}

	var all []mutant

	for decoder := json.NewDecoder(strings.NewReader(string(output))); ; {
		var p listed

		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("list the packages: %w", err)
		}

		found, err := p.mutants(root)
		if err != nil {
			return nil, err
		}

		all = append(all, found...)
	}
}

func (p *listed) mutants(root string) ([]mutant, error) {
	var all []mutant

	path := strings.TrimPrefix(p.ImportPath, module)

	tests := nearest(path)
	if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
		tests = append([]command{{pkg: "./" + path}}, tests...)
	}

	for _, name := range p.GoFiles {
		file := filepath.Join(path, name)

		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, fmt.Errorf("read the code: %w", err)
		}

		if isGenerated(string(text)) {
			continue
		}

		found, err := mutantsOf(path, file, string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}

		for i := range found {
			found[i].tests = tests
		}

		all = append(all, found...)
	}

	return all, nil
}

func isGenerated(text string) bool {
	return strings.HasPrefix(text, "// Code generated ")
}

// nearestTests are the packages of test that observe a package from outside, by the beginning of
// its path: the longest one counts.
var nearestTests = map[string][]string{
	"cmd/touchstone":                 {"test/driver/modes"},
	"cmd/touchstone/internal/ctl":    {"cmd/touchstone", "test/demo"},
	"internal/csi/csiclient":         {"test/driver/publishing"},
	"cmd/touchstone/internal/demo":   {"test/demo"},
	"internal/driver/audit":          {"cmd/touchstone"},
	"cmd/touchstone/internal/doctor": {"test/driver/modes"},
	"internal/kata":                  {"test/driver/direct"},
	"internal/kubernetes":            {"test/driver/modes"},
	"internal/linux/loop":            {"test/driver/staging"},
	"internal/linux/mount":           {"test/driver/publishing"},
	"internal/linux/filesystem":      {"test/driver/checks", "test/driver/copies"},
	"internal/linux/btrfs":           {"internal/pool/quota", "internal/pool"},
	"internal/linux/projectquota":    {"internal/pool/quota", "internal/pool"},
	"internal/linux/cgroup":          {"test/driver/modify"},
	"internal/linux/queue":           {"test/driver/modify"},
	"internal/linux/extent":          {"test/driver/metadata"},
	"internal/linux/holder":          {"test/driver/publishing"},
	"internal/linux":                 {"test/driver/staging"},
	"internal/socket":                {"test/driver/modes"},
	"internal":                       {"test/driver/requests"},
	"internal/lab/calls":             {"test/driver/recording"},
	"internal/lab/faults":            {"test/driver/faults"},
	"internal/lab/jq":                {"test/driver/faults"},
	"internal/lab/proxy":             {"internal/driver"},
	"internal/lab/strict":            {"test/driver/strict"},
	"internal/csi/capability":        {"test/driver/requests"},
	"pkg/controller":                 {"test/driver/create", "test/driver/copies", "test/driver/requests", "test/driver/modify"},
	"pkg/controller/catalog":         {"pkg/controller", "test/driver/create", "test/driver/copies"},
	"pkg/controller/changes":         {"pkg/controller", "test/driver/modify"},
	"pkg/controller/copies":          {"pkg/controller", "test/driver/copies"},
	"pkg/controller/objects":         {"pkg/controller", "test/driver/create", "test/driver/copies"},
	"pkg/controller/metadata":        {"test/driver/metadata"},
	"pkg/controller/names":           {"cmd/touchstone/internal/ctl", "test/driver/requests"},
	"internal/driver":                {"test/driver/requests", "test/driver/modes"},
	"internal/driver/statuspage":     {"test/monitoring"},
	"internal/health":                {"test/driver/health"},
	"pkg/identity":                   {"test/driver/requests"},
	"pkg/node":                       {"test/driver/staging", "test/driver/publishing"},
	"pkg/node/access":                {"pkg/node", "test/driver/staging", "test/driver/publishing", "test/driver/direct"},
	"pkg/node/device":                {"pkg/node/access", "pkg/node", "test/driver/staging", "test/driver/direct"},
	"pkg/node/direct":                {"pkg/node/access", "pkg/node", "test/driver/direct"},
	"pkg/node/ephemeral":             {"pkg/node", "test/driver/ephemeral"},
	"pkg/node/freeze":                {"test/driver/freeze"},
	"pkg/node/fsck":                  {"test/driver/checks"},
	"pkg/node/probe":                 {"test/driver/health"},
	"pkg/node/observe":               {"test/driver/health"},
	"pkg/node/stats":                 {"pkg/node", "test/driver/health"},
	"pkg/node/tuning":                {"test/driver/modify"},
	"internal/operation":             {"test/driver/operations"},
	"internal/operation/coalesce":    {"test/driver/modify"},
	"internal/pool":                  {"test/driver/pools", "test/driver/copies"},
	"internal/pool/changedblocks":    {"test/driver/metadata"},
	"internal/pool/embedded":         {"test/driver/pools"},
	"internal/pool/filecopy":         {"internal/pool", "test/driver/copies"},
	"internal/pool/layout":           {"internal/pool"},
	"internal/pool/quota":            {"internal/pool", "test/driver/pools"},
	"internal/pool/removal":          {"test/driver/removal"},
	"internal/pool/tree":             {"internal/pool", "test/driver/copies", "test/driver/removal"},
	"internal/csi/rpc":               {"test/driver/requests"},
	"pkg/state":                      {"test/crash"},
	"internal/csi/volume":            {"test/driver/create"},
}

func nearest(path string) []command {
	best := ""

	for prefix := range nearestTests {
		if (path == prefix || strings.HasPrefix(path, prefix+"/")) && len(prefix) > len(best) {
			best = prefix
		}
	}

	var tests []command
	for _, each := range nearestTests[best] {
		tests = append(tests, command{pkg: "./" + each})
	}

	return tests
}

// draw returns up to n mutants of packages that match, at random by a seed, without those that are
// listed as equivalent.
func draw(all []mutant, n int, seed uint64, match func(pkg string) bool) []mutant {
	all = slices.DeleteFunc(slices.Clone(all), func(m mutant) bool {
		return equivalent[m.name] != "" || !match(filepath.Dir(m.file))
	})

	random := rand.New(rand.NewPCG(seed, seed))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })

	return all[:min(n, len(all))]
}
