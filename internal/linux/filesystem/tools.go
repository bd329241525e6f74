package filesystem

import (
	"os/exec"
	"path/filepath"
)

// Tool is a program that a filesystem's work is left to.
type Tool struct {
	// Name is the program's, and Package the Debian package that has it.
	Name, Package string
}

// Tools returns all tools of a filesystem, none of an unknown one.
func Tools(fsType string) []Tool {
	row, _ := typeByName(fsType)
	tools := make([]Tool, 0, len(row.tools))

	for _, name := range row.tools {
		tools = append(tools, Tool{Name: name, Package: row.debianPackage})
	}

	return tools
}

// Find returns the path that a Runner starts the tool from. It also looks where tools are that a daemon's
// PATH may lack. Error: a *ToolMissingError.
func (t Tool) Find() (string, error) {
	for _, directory := range []string{"", "/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		if path, err := exec.LookPath(filepath.Join(directory, t.Name)); err == nil {
			return path, nil
		}
	}

	return "", &ToolMissingError{Tool: t.Name, Package: t.Package}
}

// KernelNeeds says for people which kernels mount what mkfs makes with the options that users may give
// it.
func KernelNeeds(fsType string) string {
	row, _ := typeByName(fsType)

	return row.kernelNeeds
}
