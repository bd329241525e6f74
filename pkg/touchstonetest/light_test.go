package touchstonetest_test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/touchstone-csi/touchstone/pkg/touchstonetest"
)

// What a test of a CO may have to take.
const (
	maxModules = 25
	maxBytes   = 25_000_000
	maxSums    = 40
)

// provisioner stands for the CO that the test of docs/testing-your-co.md calls.
const provisioner = `package co

import (
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

func provision(t *testing.T, driver csi.ControllerClient, name string) string {
	for {
		made, err := driver.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, VolumeCapabilities: []*csi.VolumeCapability{{
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			}},
		})
		if err == nil {
			return made.GetVolume().GetVolumeId()
		}

		time.Sleep(10 * time.Millisecond)
	}
}

func remove(t *testing.T, driver csi.ControllerClient, id string) {
	if _, err := driver.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Fatal(err)
	}
}
`

// TestTheModuleIsLight makes a module of the test in docs/testing-your-co.md, runs it, and measures what go
// downloads for it.
func TestTheModuleIsLight(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles gRPC and what else the module needs")
	}

	t.Parallel()

	const module = "github.com/touchstone-csi/touchstone/pkg/touchstonetest"

	here, dir := must(filepath.Abs("."))(t), t.TempDir()
	page := string(must(os.ReadFile("../../docs/testing-your-co.md"))(t))
	_, block, _ := strings.Cut(page, "\n```go\n")
	printed, _, ended := strings.Cut(block, "\n```\n")
	wantf(t, ended, "the page has a test in Go")

	for name, text := range map[string]string{
		"go.mod":            "module example.org/co\n\ngo 1.26.0\n\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + here + "\n",
		"go.sum":            string(must(os.ReadFile("go.sum"))(t)),
		"co_test.go":        printed + "\n",
		"provision_test.go": provisioner,
	} {
		wantf(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600) == nil, "the file %s", name)
	}

	run := func(args ...string) []byte {
		command := exec.CommandContext(t.Context(), "go", args...)
		command.Dir, command.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod -buildvcs=false -trimpath", "CGO_ENABLED=0", "GOPROXY=off", "GOWORK=off")

		output, err := command.Output()
		wantf(t, err == nil, "go %v succeeds without a network: %v\n%s", args, err, output)

		return output
	}

	run("test", "./...")

	found := map[string]bool{}
	for line := range strings.Lines(string(run("list", "-deps", "-test", "-f", "{{with .Module}}{{.}}{{end}}", "./..."))) {
		found[strings.TrimSpace(line)] = true
	}

	delete(found, "")
	delete(found, "example.org/co")

	var total int64

	for name := range found {
		path, version, _ := strings.Cut(name, " ")
		if path == module {
			continue // its own 20 kB
		}

		var downloaded struct {
			Zip string `json:"Zip"` //nolint:tagliatelle // as go writes it
		}

		wantf(t, json.Unmarshal(run("mod", "download", "-json", path+"@"+version), &downloaded) == nil, "the archive of %s", name)
		total += must(os.Stat(downloaded.Zip))(t).Size()
	}

	sums := bytes.Count(must(os.ReadFile(filepath.Join(dir, "go.sum")))(t), []byte("\n"))
	t.Logf("%d modules, %d bytes, %d lines of go.sum", len(found), total, sums)
	wantf(t, len(found) > 2 && len(found) <= maxModules, "at most %d modules, not %d: %v", maxModules, len(found), found)
	wantf(t, total > 0 && total <= maxBytes, "at most %d bytes, not %d", maxBytes, total)
	wantf(t, sums <= maxSums, "at most %d lines of go.sum, not %d", maxSums, sums)
}

// wireFields are the JSON keys of a structure in the source of the driver.
func wireFields(t *testing.T, dir, name string) (keys []string) {
	t.Helper()

	for _, path := range must(filepath.Glob(filepath.Join("..", "..", dir, "*.go")))(t) {
		file := must(parser.ParseFile(token.NewFileSet(), path, nil, 0))(t)

		ast.Inspect(file, func(node ast.Node) bool {
			spec, ok := node.(*ast.TypeSpec)
			if !ok || spec.Name.Name != name {
				return true
			}

			for _, field := range spec.Type.(*ast.StructType).Fields.List {
				if field.Tag != nil {
					keys = append(keys, reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json"))
				}
			}

			return false
		})
	}

	return keys
}

// TestTypesAreThoseOfTheDriver, which this module cannot import.
func TestTypesAreThoseOfTheDriver(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		value any
		dir   string
		types []string
	}{
		{touchstonetest.Call{}, "internal/lab/calls", []string{"Call"}},
		{touchstonetest.Filter{}, "internal/lab/calls", []string{"Filter"}},
		{touchstonetest.Hit{}, "internal/lab/faults", []string{"Hit"}},
		{touchstonetest.Violation{}, "internal/lab/strict", []string{"Kind", "Violation"}},
		{touchstonetest.Leak{}, "cmd/touchstone/internal/ctl", []string{"leak"}},
	} {
		var theirs, ours []string

		for _, name := range test.types {
			theirs = append(theirs, wireFields(t, test.dir, name)...)
		}

		for field := range reflect.TypeOf(test.value).Fields() {
			ours = append(ours, field.Tag.Get("json"))
		}

		wantf(t, slices.Equal(ours, theirs) && len(ours) > 0, "%T has the keys %v, not %v", test.value, theirs, ours)
	}
}
