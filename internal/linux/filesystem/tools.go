package filesystem

// Tool is a program that a filesystem's work is left to.
type Tool struct {
	// Name is the program's, and Package the Debian package that has it.
	Name, Package string
}

// Tools returns all tools of a filesystem, none of an unknown one.
func Tools(fsType string) []Tool {
	of := func(pkg string, names ...string) []Tool {
		tools := make([]Tool, 0, len(names))
		for _, name := range names {
			tools = append(tools, Tool{name, pkg})
		}

		return tools
	}

	switch fsType {
	case Ext4:
		return of(ext4Package, "mkfs.ext4", "e2fsck", "resize2fs", "tune2fs", "e2image")
	case XFS:
		return of(xfsPackage, "mkfs.xfs", "xfs_repair", "xfs_logprint", "xfs_db", "xfs_mdrestore")
	case Btrfs:
		return of(btrfsPackage, "mkfs.btrfs", "btrfs", "btrfstune")
	default:
		return nil
	}
}

// Find returns the path that a Runner starts the tool from. Error: a
// *ToolMissingError.
func (t Tool) Find() (string, error) {
	path, err := findTool(t.Name)
	if err != nil {
		return "", &ToolMissingError{Tool: t.Name, Package: t.Package}
	}

	return path, nil
}
