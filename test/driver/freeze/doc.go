// Package freeze tests how the node freezes the filesystems of volumes: writers wait while
// it lasts, and it ends whatever happens, also to the process that froze them.
package freeze
