package manifests

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// ExamplesDir is where a test of this package finds examples/.
const ExamplesDir = "../../examples"

// faultRules is the example whose YAML has fault rules of the driver instead of objects.
const faultRules = "faults"

// ExpectAnnotation says what becomes of an example's object that does not get
// well, as all others do: a phase or a condition.
const ExpectAnnotation = "touchstone.dev/expect"

// Example is a directory of examples/ with manifests in it.
type Example struct {
	Name string
	// Readme is the text of README.md.
	Readme string
	// Steps are the manifests that are applied, one after the other.
	Steps []Manifest
	// Others are manifests without a number.
	Others []Manifest
}

// Manifest is a file with objects.
type Manifest struct {
	File    string
	Objects map[string]Object
}

// numbered is how the name of a step's manifest begins.
var numbered = regexp.MustCompile(`^(\d+)-`)

var errNumber = errors.New("another number is wanted")

// Examples reads all that there are, by their names. An error are objects that
// Kubernetes would not take, and steps that are not numbered from 1 without a gap.
func Examples(directory string) ([]Example, error) {
	files, err := filepath.Glob(filepath.Join(directory, "*", "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("what is in %s: %w", directory, err)
	}

	var found []Example

	// Sorted by name: an example's files are together, and its steps in order.
	for _, file := range files {
		name := filepath.Base(filepath.Dir(file))
		if name == faultRules {
			continue
		}

		if len(found) == 0 || found[len(found)-1].Name != name {
			readme, err := os.ReadFile(filepath.Join(filepath.Dir(file), "README.md"))
			if err != nil {
				return nil, fmt.Errorf("example %s: %w", name, err)
			}

			found = append(found, Example{Name: name, Readme: string(readme)})
		}

		if err := found[len(found)-1].read(file); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}

	return found, nil
}

func (e *Example) read(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}

	objects, err := Decode(string(text))
	if err != nil {
		return err
	}

	manifest := Manifest{File: filepath.Base(file), Objects: objects}

	match := numbered.FindStringSubmatch(manifest.File)
	if match == nil {
		e.Others = append(e.Others, manifest)

		return nil
	}

	e.Steps = append(e.Steps, manifest)

	if want := strconv.Itoa(len(e.Steps)); match[1] != want {
		return fmt.Errorf("%w: this is step %s of %s", errNumber, want, e.Name)
	}

	return nil
}

// All are the manifests of an example, its steps first.
func (e *Example) All() []Manifest { return slices.Concat(e.Steps, e.Others) }
